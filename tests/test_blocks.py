"""Where norms stand and what they divide by, and blocks whose branches stand side by side, against their formulas."""

import copy
import itertools

import oracles
import pytest
import torch
from oracles import assert_close, assert_same, randn, randomised, sub
from toy_tasks import copy as copying, learned, net_for

from x_transformers import AttentionLayers, Decoder, Encoder, RMSNorm, TransformerWrapper
from x_transformers.features.norms import BiasedLayerNorm
from x_transformers.flags import ConfigError
from x_transformers.x_transformers import LayerNorm, ScaleNorm, SimpleRMSNorm

SIZES = dict(dim=6, heads=2, attn_dim_head=3, ff_mult=1)
EXACT = 1e-12


def normed(w, x, o):
    """(x - mean) / sqrt(variance + eps), or x / sqrt(mean square + eps), times a gain, plus a bias."""
    rows = []
    for row in x.reshape(-1, x.shape[-1]):
        n = len(row)
        row = row - (0 if o.get('use_rmsnorm') else sum(row) / n)
        rows.append(row / torch.sqrt(sum(row * row) / n + o.get('norm_eps', 1e-5)))
    x = torch.stack(rows).reshape(x.shape)
    gain = w.get('g' if o.get('use_rmsnorm') else 'gamma')
    x = x if gain is None else x * (gain + o.get('norm_add_unit_offset', True))
    return x + w['beta'] if 'beta' in w else x


def formula(w, x, causal, depth=2, **o):
    """Blocks of attention and feedforward, each with its norm, and what it reads."""
    parallel, stream, before = o.get('parallel_block', False), x, x
    for at in range(2 * depth):
        before = stream if at % 2 == 0 else before
        read = before if parallel else stream
        owner = at - at % 2 if parallel == 'shared' else at
        if not o.get('branch_post_norm') and (at or o.get('first_attn_norm', True)):
            read = normed(sub(w, f'layers.{owner}.0.0.'), read, o)
        own = sub(w, f'layers.{at}.1.')
        call = dict(heads=2, dim_head=3, causal=causal)
        out = oracles.feedforward(own, read) if at % 2 else oracles.attention(own, read, **call)
        if o.get('branch_post_norm') or o.get('sandwich_norm'):
            out = normed(sub(w, f'layers.{at}.0.1.'), out, o)
        stream = stream + out
    return normed(sub(w, 'final_norm.'), stream, o)


CASES = {
    'eps': dict(norm_eps=0.1),
    'eps, rms': dict(norm_eps=0.1, use_rmsnorm=True),
    'eps, bias, no offset': dict(norm_eps=1e-3, norm_bias=True, norm_add_unit_offset=False),
    'no gains': dict(norm_affine=False),
    'no gains, rms': dict(norm_affine=False, use_rmsnorm=True, norm_eps=0.1),
    'norms of branches': dict(branch_post_norm=True, norm_eps=0.1, use_rmsnorm=True, norm_add_unit_offset=False),
    'first attention': dict(first_attn_norm=False),
    'side by side': dict(parallel_block=True),
    'one norm for both': dict(parallel_block='shared', norm_bias=True),
    'no norm in front of the first': dict(parallel_block=True, first_attn_norm=False, sandwich_norm=True),
    'side by side, normed behind': dict(parallel_block=True, branch_post_norm=True),
}


@pytest.mark.parametrize('kind', [Encoder, Decoder])
@pytest.mark.parametrize('name', CASES)
def test_formula(name, kind):
    net = randomised(kind(**SIZES, depth=2, **CASES[name]))
    causal = kind is Decoder
    assert_same(net, net, lambda w, x: formula(w, x, causal, **CASES[name]), randn(2, 4, 6), tolerance=EXACT)


@pytest.mark.parametrize('shape', [(2, 7, 5), (1, 1, 1)])
def test_norms_alone(shape):
    for kind, rms in ((LayerNorm, False), (BiasedLayerNorm, False), (RMSNorm, True)):
        module = randomised(kind(shape[-1], unit_offset=True, eps=0.3))
        flags = dict(use_rmsnorm=rms, norm_eps=0.3)
        assert_same(module, module, lambda w, x, o=flags: normed(w, x, o), randn(*shape), tolerance=EXACT)
    x, plain = randn(*shape), dict(use_rmsnorm=True, norm_eps=0.3)
    assert_close(SimpleRMSNorm(shape[-1], eps=0.3)(x), normed({}, x, plain), tolerance=EXACT)
    assert_close(ScaleNorm(shape[-1], eps=0.3).double()(x), normed({}, x, plain), tolerance=EXACT)


@pytest.mark.parametrize('offset', [True, False])
def test_gains_are_one_at_the_start_and_scalenorm_gives_a_length(offset):
    """1910.05895: all vectors are as long as the gain says, sqrt(d) at the start."""
    for kind in (LayerNorm, RMSNorm, ScaleNorm):
        gain = next(kind(6, offset).parameters())
        assert gain.shape == ((1,) if kind is ScaleNorm else (6,)) and (gain == 1 - offset).all()
    norm, x = ScaleNorm(6, offset).double(), randn(3, 4, 6)
    assert_close(norm(x).norm(dim=-1), torch.full((3, 4), 6.0).double().sqrt(), tolerance=EXACT)
    torch.nn.init.constant_(norm.g, -1.7)
    out, wanted = norm(x), 6**0.5 * (-1.7 + offset)
    assert_close(out.norm(dim=-1), torch.full((3, 4), abs(wanted), dtype=torch.float64), tolerance=EXACT)
    assert_close(out, wanted * x / x.square().sum(dim=-1, keepdim=True).sqrt(), tolerance=EXACT)


def test_every_norm_of_a_stack_has_the_eps():
    kinds = ('adaptive_layernorm', 'adaptive_rmsnorm', 'simple_rmsnorm', 'scalenorm')
    places = (dict(norm_bias=True, pre_norm=False), dict(sandwich_norm=True))
    for flags in (*({f'use_{name}': True} for name in kinds), *places):
        net = Decoder(**SIZES, depth=1, norm_eps=0.25, **flags)
        found = [m.eps for m in net.modules() if hasattr(m, 'eps')]
        assert found and set(found) == {0.25}, flags
    x, condition = randn(2, 3, 6), randn(2, 6)
    for rms in (False, True):
        own = f'use_adaptive_{"rms" if rms else "layer"}norm'
        norm = randomised(Decoder(**SIZES, depth=1, norm_eps=0.25, **{own: True})).final_norm
        wanted = normed({}, x, dict(norm_eps=0.25, use_rmsnorm=rms)) * (1 + condition[:, None] @ norm.to_gamma.weight.T)
        assert_close(norm(x, condition=condition), wanted, tolerance=EXACT)


def test_half_precision_sums_in_float32():
    """The square of 300 is more than float16 holds, and 4096 ones in bfloat16 do not sum up."""
    norm = RMSNorm(4096, eps=1e-6)
    x = 300 + torch.randn(2, 4096, generator=torch.Generator().manual_seed(0))
    for dtype in (torch.float16, torch.bfloat16):
        out = norm.to(dtype)(x.to(dtype))
        wanted = x.to(dtype).double() / x.to(dtype).double().square().mean(dim=-1, keepdim=True).sqrt()
        assert out.dtype == dtype
        assert (out.double() - wanted).abs().max() < 1.01 * torch.finfo(dtype).eps


def test_a_vector_of_zeros_stays_zero():
    for norm in (RMSNorm(5, eps=1e-6), SimpleRMSNorm(5, eps=1e-6)):
        x = torch.zeros(2, 5, requires_grad=True)
        out = norm(x)
        (grad,) = torch.autograd.grad(out.sum(), x, create_graph=True)
        assert (out == 0).all() and torch.allclose(grad, torch.full_like(grad, 1e3))
        assert torch.autograd.grad(grad.sum(), x)[0].isfinite().all()


NAMES = {
    'eps': (dict(norm_eps=0.1), {'layers.0.0.0.gamma', 'layers.1.0.0.gamma', 'final_norm.gamma'}),
    'none': (dict(norm_affine=False), set()),
    'branch': (dict(branch_post_norm=True), {'layers.0.0.1.gamma', 'layers.1.0.1.gamma', 'final_norm.gamma'}),
    'first': (dict(first_attn_norm=False), {'layers.1.0.0.gamma', 'final_norm.gamma'}),
    'parallel': (dict(parallel_block=True), {'layers.0.0.0.gamma', 'layers.1.0.0.gamma', 'final_norm.gamma'}),
    'shared': (dict(parallel_block='shared'), {'layers.0.0.0.gamma', 'final_norm.gamma'}),
}


def test_names_of_norms():
    for name, (flags, wanted) in NAMES.items():
        net = Decoder(**SIZES, depth=1, **flags)
        assert {n for n in net.state_dict() if '.1.to' not in n and '.ff.' not in n} == wanted, name
        assert Decoder.from_config(net.config).state_dict().keys() == net.state_dict().keys()
    assert 'LayerNorm after each branch' in Decoder(**SIZES, depth=1, branch_post_norm=True).explain()


def test_the_first_attention_is_the_one_that_runs_first():
    net = Decoder(**SIZES, depth=2, first_attn_norm=False, layers_execute_order=(2, 3, 0, 1))
    assert [layer[0][0] is None for layer in net.layers] == [False, False, True, False]


# blocks whose branches stand side by side


@pytest.mark.parametrize('parallel', [True, 'shared'])
def test_three_branches_read_the_same(parallel):
    """Cross-attention stands beside the others; what a caller adds to what branches read is normed with it."""
    net = randomised(Decoder(**SIZES, depth=2, cross_attend=True, parallel_block=parallel))
    x, context, added = randn(2, 4, 6), randn(2, 3, 6, seed=1), randn(2, 4, 6, seed=2)
    stream, on = x, dict(net.named_modules())
    for block in range(2):
        read = stream + added
        for at in range(3 * block, 3 * block + 3):
            norm = on[f'layers.{3 * block if parallel == "shared" else at}.0.0']
            given = dict(context=context) if at % 3 == 1 else {}
            stream = stream + on[f'layers.{at}.1'](norm(read), **given)
    assert_close(net(x, context, in_attn_cond=added), net.final_norm(stream), tolerance=EXACT)


def test_a_block_reads_the_stream_whoever_is_left_out(monkeypatch):
    """Attention that is left out in training leaves the feedforward what it read before; so does a second run."""
    net = randomised(Decoder(**SIZES, depth=2, parallel_block='shared', layer_dropout=(0.9, 0.0, 0.0, 0.0))).train()
    monkeypatch.setattr(torch, 'rand', lambda *size, **given: torch.zeros(*size))
    x = randn(2, 4, 6)
    first = x + net.layers[1][1](net.layers[0][0][0](x))
    read = net.layers[2][0][0](first)
    assert_close(net(x), net.final_norm(first + net.layers[2][1](read) + net.layers[3][1](read)), tolerance=EXACT)


@pytest.mark.parametrize('length', [1, 2, 3])
@pytest.mark.parametrize(
    'flags', [dict(parallel_block='shared'), dict(parallel_block=True, gate_residual=True)], ids=str
)
def test_blocks_run_again_in_the_backward_pass(flags, length):
    nets = [randomised(Decoder(**SIZES, depth=2, **flags, **again)).train()
            for again in ({}, dict(checkpoint_layers=length))]  # fmt: skip
    x = randn(2, 4, 6).requires_grad_()
    own, wanted = [torch.autograd.grad(net(x).square().sum(), (x, *net.parameters())) for net in nets]
    for one, other in zip(own, wanted, strict=True):
        assert_close(one, other, tolerance=EXACT)


def test_a_borrowed_norm_is_read_as_it_was():
    """The second branch of a block reads the norm of the first one, also where it runs again by itself."""
    net = randomised(Decoder(**SIZES, depth=1, parallel_block='shared', checkpoint_layers=1)).train()
    own = {name: (t.detach() * 1.5).requires_grad_() for name, t in net.named_parameters()}
    out = torch.func.functional_call(net, own, (randn(2, 4, 6),))
    found = torch.autograd.grad(out.square().sum(), [*own.values()])
    with torch.no_grad():
        for name, t in net.named_parameters():
            t.copy_(own[name])
    wanted = torch.autograd.grad(net(randn(2, 4, 6)).square().sum(), [*net.parameters()])
    for one, other in zip(found, wanted, strict=True):
        assert_close(one, other, tolerance=EXACT)


def test_orders_of_whole_blocks():
    net, x = randomised(Decoder(**SIZES, depth=2, parallel_block=True)), randn(2, 4, 6)
    plain = copy.deepcopy(net)
    plain.final_norm = torch.nn.Identity()
    twice = net(plain(x, repeat_blocks=(1, 0)))
    assert_close(net(x, repeat_blocks=(0, 2)), twice, tolerance=EXACT)
    assert_close(net(x, layers_execute_order=(0, 1, 0, 1, 2, 3)), twice, tolerance=EXACT)
    for order in ((0, 1, 1), (1, 0), (0, 1, 2), (1,)):
        with pytest.raises(ValueError, match='`layers_execute_order` cannot be combined with `parallel_block`'):
            net(x, layers_execute_order=order)
    with pytest.raises(ConfigError, match='`parallel_block` cannot be combined with this `layers_execute_order`'):
        Decoder(**SIZES, depth=1, parallel_block=True, layers_execute_order=(0, 1, 1))


def test_memories_are_normed_like_the_tokens():
    flags = dict(**SIZES, depth=1, norm_eps=0.1, parallel_block='shared')
    net = randomised(TransformerWrapper(num_tokens=9, max_seq_len=0, max_mem_len=4, attn_layers=Decoder(
        **flags, rotary_pos_emb=True)))  # fmt: skip
    ids = torch.randint(0, 9, (2, 8), generator=torch.Generator().manual_seed(0))
    _, mems = net(ids[:, :4], return_mems=True)
    assert_close(net(ids[:, 4:], mems=mems), net(ids)[:, 4:], tolerance=1e-10)


@pytest.mark.parametrize(
    ('flags', 'words'),
    [
        (dict(norm_eps=0), '`norm_eps` must be a positive number or None, got 0'),
        (dict(norm_eps=0.1, use_dynamic_tanh=True), '`norm_eps` cannot be combined with `use_dynamic_tanh`'),
        (dict(norm_eps=0.1, use_rezero=True), '`norm_eps` cannot be combined with `use_rezero`'),
        (dict(norm_affine=False, norm_bias=True), '`norm_affine` cannot be combined with `norm_bias`'),
        (dict(norm_affine=False, use_scalenorm=True), '`norm_affine` cannot be combined with `use_scalenorm`'),
        (dict(branch_post_norm=True, pre_norm=False), '`branch_post_norm` needs `pre_norm`'),
        (dict(branch_post_norm=True, sandwich_norm=True), '`branch_post_norm` cannot be combined with `sandwich_norm`'),
        (dict(branch_post_norm=True, resi_dual=True), '`branch_post_norm` cannot be combined with `resi_dual`'),
        (dict(branch_post_norm=True, pre_and_post_norm=True), '`branch_post_norm` cannot be .*with `pre_and_post'),
        (dict(first_attn_norm=False, pre_norm=False), '`first_attn_norm=False` needs `pre_norm`'),
        (dict(first_attn_norm=False, branch_post_norm=True), '`first_attn_norm` cannot be .*with `branch_post_norm`'),
        (dict(first_attn_norm=False, layers_execute_order=(0, 1, 0, 1)), '`first_attn_norm=False` cannot be .*with'),
        (dict(parallel_block='both'), "`parallel_block` must be True, False or 'shared', got 'both'"),
        (dict(parallel_block=True, pre_norm=False), '`parallel_block` needs `pre_norm`'),
        (dict(parallel_block=True, macaron=True), '`parallel_block` cannot be combined with `macaron`'),
        (dict(parallel_block=True, custom_layers=('a', 'f')), '`parallel_block` cannot be .*with `custom_layers`'),
        (dict(parallel_block=True, reversible=True), '`parallel_block` cannot be combined with `reversible`'),
        (dict(parallel_block=True, num_residual_streams=2), 'cannot be combined with `num_residual_streams`'),
        (dict(parallel_block='shared', branch_post_norm=True), "`parallel_block='shared'` cannot be .*with `branch_po"),
        (dict(parallel_block='shared', first_attn_norm=False), "`parallel_block='shared'` cannot be .*with `first_at"),
    ],
    ids=lambda value: '-'.join(value) if isinstance(value, dict) else '',
)  # fmt: skip
def test_refusals(flags, words):
    with pytest.raises(ConfigError, match=words):
        Decoder(**{**SIZES, 'depth': 2, **flags})


KINDS_OF_NORMS = (
    'scalenorm', 'rmsnorm', 'simple_rmsnorm', 'adaptive_layernorm', 'adaptive_rmsnorm', 'dynamic_tanh', 'derf',
)  # fmt: skip


@pytest.mark.parametrize('pair', [*itertools.combinations(KINDS_OF_NORMS, 2)], ids='-'.join)
def test_one_norm_at_a_time(pair):
    with pytest.raises(ConfigError, match='both choose the norm, set only one'):
        Decoder(**SIZES, depth=1, **{f'use_{name}': True for name in pair})


ACTIVATIONS = {
    'gelu': {},
    'relu_squared': dict(ff_relu_squared=True),
    'swish': dict(ff_swish=True),
    'geglu': dict(ff_glu=True),
    'swiglu': dict(ff_glu=True, ff_swish=True),
    **{name: dict(ff_activation=name) for name in ('relu', 'tanh', 'quick_gelu')},
}
NORMS = {
    'layer norm': {},
    'rms norm': dict(use_rmsnorm=True),
    'scale norm': dict(use_scalenorm=True),
    'unit embeddings': dict(use_scalenorm=True, l2norm_embed=True),
}


@pytest.mark.nightly
@pytest.mark.parametrize('norm', NORMS)
@pytest.mark.parametrize('activation', ACTIVATIONS)
def test_each_activation_learns_beside_each_norm(activation, norm):
    torch.manual_seed(0)
    task, flags = copying(n=16), {**ACTIVATIONS[activation], **NORMS[norm]}
    around = {'l2norm_embed': flags.pop('l2norm_embed', False)}
    assert learned(net_for(task, Decoder, around=around, **flags), task, steps=120) >= 0.95


def test_a_norm_of_a_user():
    """It has its eps in `eps`, or refuses one."""
    from x_transformers.features import StackFeature
    from x_transformers.flags import flag

    class Own(StackFeature):
        own_norm = flag(False, 'one of torch')
        eps_of_it = flag(True, 'whether it has an eps')

        def norm(self):
            return torch.nn.RMSNorm(6) if self.eps_of_it else torch.nn.Tanh()

    net = AttentionLayers(**SIZES, depth=1, features=(Own,), own_norm=True, norm_eps=0.5)
    assert net.final_norm.eps == 0.5
    for flags in (dict(norm_eps=0.5, eps_of_it=False), dict(norm_affine=False)):
        with pytest.raises(ConfigError, match=r'norm_(eps|affine=False)` cannot be combined with (Tanh|RMSNorm)'):
            AttentionLayers(**SIZES, depth=1, features=(Own,), own_norm=True, **flags)
