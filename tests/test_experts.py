"""Mixtures of experts against loops over tokens and experts: outputs, gradients, the choice, and the balance loss."""

import importlib
import math

import pytest
import torch
from oracles import assert_close, assert_same, randn, randomised
from torch import nn

from x_transformers import AutoregressiveWrapper, Decoder, Encoder, FeedForward, TransformerWrapper
from x_transformers.features import experts as grouped
from x_transformers.flags import ConfigError
from x_transformers.training import AuxLosses

DIM, EXPERTS = 6, 6


def gelu(t):
    return 0.5 * t * (1 + torch.erf(t / math.sqrt(2)))


def mixed_sparsely(z, top_k, scale):
    """arXiv:2409.12136, in evaluation: the best of the experts that are left, among those that are near to it."""
    left, found = list(range(len(z))), []
    for _ in range(top_k):
        best = max(left, key=lambda e: z[e].item())
        near = [e for e in left if not (z[best] - z[e]) / max(abs(z[e]), z[best]) > 0.02]
        found.append((best, scale * torch.exp(z[best]) / sum(torch.exp(z[e]) for e in near)))
        left.remove(best)
    return found, z.softmax(dim=-1)


def chosen_by(
    w, x, kind='softmax', top_k=2, renormalise=True, groups=1, top_groups=1, scale=1.0, group_score='top2', **_
):
    """(expert, weight) of one token, and the shares of all experts, from the definition."""
    z = w['moe.router.weight'] @ x
    z = z + w['moe.router.bias'] if 'moe.router.bias' in w else z
    if kind == 'sparsemixer':
        return mixed_sparsely(z, top_k, scale)
    p, seen = torch.exp(z - z.max()) / torch.exp(z - z.max()).sum(), list(range(len(z)))
    s = {'sigmoid': 1 / (1 + torch.exp(-z)), 'sqrtsoftplus': torch.log(1 + torch.exp(z)) ** 0.5}.get(kind, p)
    c = s + w['moe.score_bias'] if 'moe.score_bias' in w else s
    if groups > 1:
        size = len(z) // groups
        parts = [seen[at : at + size] for at in range(0, len(z), size)]
        best = 1 if group_score == 'max' else 2
        parts.sort(key=lambda part: -sum(sorted((c[e].item() for e in part), reverse=True)[:best]))
        seen = [e for part in parts[:top_groups] for e in part]
    best = sorted(seen, key=lambda e: -c[e].item())[:top_k]
    total = sum(s[e] for e in best)
    if kind == 'topk_softmax':
        found = [torch.exp(z[e]) / sum(torch.exp(z[o]) for o in best) for e in best]
    else:
        found = [s[e] / total if renormalise else s[e] for e in best]
    return [(e, value * scale) for e, value in zip(best, found, strict=True)], s / s.sum()


def through(up, up_bias, down, down_bias, x, gated, act):
    h = up @ x if up_bias is None else up @ x + up_bias
    h = h[: len(h) // 2] * act(h[len(h) // 2 :]) if gated else act(h)
    return down @ h if down_bias is None else down @ h + down_bias


def mixture(w, x, glu=False, act=gelu, **choice):
    """One token after the other, one expert after the other."""
    up = 'moe.up_gate' if glu else 'moe.up'
    shared = 'moe.shared.0.proj' if glu else 'moe.shared.0.0'
    rows = []
    for token in x.reshape(-1, x.shape[-1]):
        out = 0
        for e, weight in chosen_by(w, token, **choice)[0]:
            if e >= len(w[f'{up}.weight']):  # an expert without weights
                out = out + weight * token
                continue
            parts = [None if f'{n}' not in w else w[n][e] for n in (f'{up}.weight', f'{up}.bias')]
            parts += [None if n not in w else w[n][e] for n in ('moe.down.weight', 'moe.down.bias')]
            at_input = choice.get('weight_at') == 'input'
            one = through(*parts, weight * token if at_input else token, glu, act)
            out = out + (one if at_input else weight * one)
        if f'{shared}.weight' in w:
            names = (f'{shared}.weight', f'{shared}.bias', 'moe.shared.2.weight', 'moe.shared.2.bias')
            gate = w['moe.shared_gate.weight'][0] @ token if 'moe.shared_gate.weight' in w else math.inf
            one = through(*(w.get(n) for n in names), token, glu, act)
            out = out + one * torch.as_tensor(gate, dtype=x.dtype).sigmoid()
        rows.append(out)
    return torch.stack(rows).reshape(*x.shape[:-1], -1)


GROUPED = dict(moe_kind='sigmoid', moe_groups=3, moe_top_groups=2, moe_score_bias=True, moe_scale=2.5, moe_top_k=3)
SHAPES = {
    'plain': {},
    'all experts': dict(moe_top_k=6),
    'one of many': dict(moe_top_k=1, moe_renormalise=False),
    'gated': dict(glu=True, swish=True),
    'not renormalised': dict(moe_renormalise=False, no_bias=True),
    'softmax of the best': dict(moe_kind='topk_softmax', moe_router_bias=True, glu=True, moe_bias=False),
    'sigmoid': dict(moe_kind='sigmoid'),
    'groups': dict(**GROUPED, moe_shared=2, glu=True, swish=True, no_bias=True),
    'groups, not renormalised': dict(**GROUPED, moe_renormalise=False, moe_shared=1),
    'gated, with biases': dict(glu=True, activation='silu', moe_bias=True, no_bias=True),
    'gated, without biases': dict(glu=True, swish=True, glu_bias=False, moe_shared=1),
    'softmax with a bias': dict(moe_score_bias=True, moe_top_k=3),
    'groups by their best': dict(moe_groups=3, moe_top_groups=2, moe_group_score='max', moe_renormalise=False),
    'groups by their two best': dict(moe_groups=2, moe_top_groups=1, moe_score_bias=True, moe_scale=1.5),
    'roots of softplus': dict(moe_kind='sqrtsoftplus', moe_score_bias=True, moe_scale=1.5, no_bias=True),
    'weights of inputs': dict(moe_kind='sigmoid', moe_renormalise=False, moe_weight_at='input', moe_shared=1),
    'gated shared expert': dict(moe_shared=1, moe_shared_gate=True, glu=True, swish=True, moe_dim_shared=7),
    'zero experts': dict(moe_zero_experts=5, moe_renormalise=False, moe_score_bias=True, moe_scale=1.5),
    'zero experts, weights of inputs': dict(moe_zero_experts=5, moe_weight_at='input', glu=True, moe_top_k=3),
    'sparsemixer': dict(moe_kind='sparsemixer', moe_router_bias=True, moe_shared=1),
    'sparsemixer, three': dict(moe_kind='sparsemixer', moe_top_k=3, moe_scale=1.5),
    'by name': dict(activation='relu2', dim_inner=5),
    'other widths': dict(moe_dim_inner=3, dim_out=4, relu_squared=True, moe_shared=1),
}


def built(**flags):
    module = randomised(FeedForward(DIM, **{'mult': 1, 'moe_experts': EXPERTS, **flags}))
    if flags.get('moe_score_bias'):
        module.moe.score_bias[:EXPERTS].copy_(torch.tensor([0.2, -0.25, 0.1, -0.1, 0.05, 0.0]))
    if flags.get('moe_kind') == 'sparsemixer':  # so that some are near to the best and others are not
        with torch.no_grad():
            module.moe.router.weight.mul_(0.05).add_(0.5)
    return module


def choice_of(flags):
    names = ('kind', 'top_k', 'renormalise', 'groups', 'top_groups', 'scale', 'group_score', 'weight_at')
    return {name: flags[f'moe_{name}'] for name in names if f'moe_{name}' in flags}


def activation_of(flags):
    if flags.get('swish') or flags.get('activation') == 'silu':
        return lambda t: t / (1 + torch.exp(-t))
    return (lambda t: t * t * (t > 0)) if {'relu_squared', 'activation'} & {*flags} else gelu


@pytest.fixture(params=['slices', 'blocks'])
def way(request, monkeypatch):
    if request.param == 'blocks':
        monkeypatch.setattr(grouped, 'can_read_values', lambda t: False)


@pytest.mark.parametrize('n', [1, 7])
@pytest.mark.parametrize('name', SHAPES)
def test_formula(name, n, way):
    flags = SHAPES[name]
    module = built(**flags)

    def oracle(w, x):
        w = {**w, **dict(module.named_buffers())}
        return mixture(w, x, bool(flags.get('glu')), activation_of(flags), **choice_of(flags))

    assert_same(module, module, oracle, randn(2, n, DIM))


def test_sparsemixer_leaves_out_what_is_far():
    """Of three near logits each softmax has those that are left; a far one changes nothing."""
    choose, z = built(moe_kind='sparsemixer').moe.choose, torch.tensor([1.0, 0.99, 0.985, 0.5, -3.0, -1.0]).double()
    chosen, weights, _ = choose(z[None])
    first = z[:3].softmax(dim=0)
    assert chosen.tolist() == [[0, 1]]
    assert_close(weights, torch.stack((first[0], z[1:3].softmax(dim=0)[0]))[None])
    z = torch.tensor(
        [-1.0, -1.0202, -9.0, -9.0, -9.0, -9.0]
    ).double()  # below zero, distances are shares of the lower one
    assert_close(choose(z[None])[1][0, 0], z[:2].softmax(dim=0)[0])
    with pytest.raises(ValueError, match="`moe_kind='sparsemixer'` cannot be combined with training"):
        built(moe_kind='sparsemixer').train()(randn(1, 2, DIM))


# a block of transformers, keywords of its config, and ours
SHARED = dict(moe_shared=1, moe_dim_shared=7, moe_shared_gate=True)
THEIRS = {
    'qwen2_moe': ('Qwen2MoeSparseMoeBlock', 'Qwen2MoeConfig', dict(shared_expert_intermediate_size=7),
                  dict(**SHARED, moe_renormalise=False)),
    'ernie4_5_moe': ('Ernie4_5_MoeSparseMoeBlock', 'Ernie4_5_MoeConfig',
                     dict(moe_num_experts=6, moe_k=2, moe_num_shared_experts=1),
                     dict(moe_shared=1, moe_score_bias=True)),
    'deepseek_v2': ('DeepseekV2Moe', 'DeepseekV2Config',
                    dict(num_attention_heads=2, n_group=3, topk_group=2, n_shared_experts=1,
                         topk_method='group_limited_greedy', routed_scaling_factor=1.5),
                    dict(moe_shared=1, moe_groups=3, moe_top_groups=2, moe_group_score='max', moe_scale=1.5,
                         moe_renormalise=False)),
    'llama4': ('Llama4TextMoe', 'Llama4TextConfig', dict(num_experts_per_tok=1),
               dict(moe_kind='sigmoid', moe_shared=1, moe_weight_at='input', moe_renormalise=False, moe_top_k=1)),
    'phimoe': ('PhimoeSparseMoeBlock', 'PhimoeConfig', {}, dict(moe_kind='sparsemixer')),
    'deepseek_v4': ('DeepseekV4SparseMoeBlock', 'DeepseekV4Config',
                    dict(num_attention_heads=2, n_shared_experts=1, swiglu_limit=0.5, routed_scaling_factor=1.5),
                    dict(moe_kind='sqrtsoftplus', moe_shared=1, moe_score_bias=True, moe_scale=1.5, glu_clamp=0.5)),
    'longcat_flash': ('LongcatFlashMoE', 'LongcatFlashConfig',
                      dict(zero_expert_num=3, moe_topk=2, ffn_hidden_size=5, expert_ffn_hidden_size=5,
                           num_attention_heads=2, routed_scaling_factor=1.5),
                      dict(moe_zero_experts=3, moe_score_bias=True, moe_renormalise=False, moe_scale=1.5)),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize('name', THEIRS)
def test_blocks_of_transformers(name):
    pytest.importorskip('transformers')
    block, config, keywords, flags = THEIRS[name]
    counts = dict.fromkeys(('num_experts', 'num_local_experts', 'n_routed_experts'), EXPERTS)
    sizes = dict(hidden_size=DIM, intermediate_size=5, moe_intermediate_size=5, num_experts_per_tok=2, **counts)
    made = getattr(importlib.import_module(f'transformers.models.{name}.configuration_{name}'), config)
    made = made(**{**sizes, **keywords})
    made._experts_implementation = 'eager'
    block = getattr(importlib.import_module(f'transformers.models.{name}.modeling_{name}'), block)
    theirs = (block(made, 5) if name == 'deepseek_v4' else block(made)).double().eval()
    for i, t in enumerate(theirs.state_dict().values()):
        t.copy_(randn(*t.shape, seed=i) * 0.5)
    ours = FeedForward(
        DIM, moe_experts=EXPERTS, dim_inner=5, glu=True, swish=True, no_bias=True, glu_bias=False, **flags
    )
    state = {}
    for key, t in theirs.state_dict().items():
        if key == 'experts.gate_up_proj':
            t = (t.mT if name == 'llama4' else t)[:EXPERTS]
            state['moe.up_gate.weight'] = torch.cat(t.chunk(2, dim=1)[::-1], dim=1)
        elif key == 'experts.down_proj':
            state['moe.down.weight'] = t.mT if name == 'llama4' else t
        elif key.endswith('e_score_correction_bias'):
            state['moe.score_bias'] = t.flatten()
        elif key.endswith('shared_expert_gate.weight'):
            state['moe.shared_gate.weight'] = t
        elif 'shared_expert' in key:
            part = key.split('.')[1].removesuffix('_proj')
            if part == 'down':
                state['moe.shared.2.weight'] = t
            else:
                state['moe.shared.0.proj.weight'] = (*state.get('moe.shared.0.proj.weight', ()), (part, t))
        else:
            state['moe.router.weight'] = t
    if 'moe.shared.0.proj.weight' in state:
        halves = dict(state['moe.shared.0.proj.weight'])
        state['moe.shared.0.proj.weight'] = torch.cat((halves['up'], halves['gate']))
    ours.double().load_state_dict(state)
    x = randn(2, 9, DIM)
    out = theirs(x)
    out = out[0] if isinstance(out, tuple) else out
    assert_close(ours.eval()(x), out.view_as(x), tolerance=1e-6)  # its scores are in float32


@pytest.mark.parametrize('kind', ['sqrtsoftplus', 'sigmoid', 'softmax'])
def test_logits_that_underflow_have_gradients(kind):
    module = built(moe_kind=kind, moe_router_bias=True, moe_top_k=3).float()
    with torch.no_grad():
        module.moe.router.bias.copy_(torch.tensor([-400.0, -500, -300, -400, -300, -200]))
    module(randn(1, 4, DIM).float()).sum().backward()
    assert all(p.grad is None or p.grad.isfinite().all() for p in module.parameters())


def test_zero_experts_take_no_weights(way):
    """Tokens whose experts are all without weights come back as they are."""
    module = built(moe_zero_experts=2, moe_router_bias=True)
    with torch.no_grad():
        module.moe.router.bias.copy_(torch.tensor([0.0] * EXPERTS + [90, 90]))
    module.zero_grad()
    x = randn(2, 5, DIM)
    assert_close(module(x), x)
    module(x).sum().backward()
    grad = module.moe.up.weight.grad
    assert grad is None or (grad == 0).all()


def test_bounded_experts():
    """gpt-oss: a router with a bias, the softmax of the best, and bounded gated units with biases."""
    flags = dict(moe_kind='topk_softmax', moe_router_bias=True, moe_bias=True)
    module = built(glu=True, swiglu_limit=0.4, no_bias=True, **flags)
    names = ('router.weight', 'router.bias', 'up_gate.weight', 'up_gate.bias', 'down.weight', 'down.bias')
    assert {*module.state_dict()} == {f'moe.{name}' for name in names}
    biases = [n for n in FeedForward(DIM, moe_experts=2, glu=True, glu_bias=False).state_dict() if n.endswith('bias')]
    assert biases == ['moe.down.bias']

    def oracle(w, x):
        rows = []
        for token in x.reshape(-1, DIM):
            out = 0
            for e, weight in chosen_by(w, token, kind='topk_softmax')[0]:
                u, g = (w['moe.up_gate.weight'][e] @ token + w['moe.up_gate.bias'][e]).chunk(2)
                u, g = u.clamp(-0.4, 0.4), g.clamp(max=0.4)
                h = (u + 1) * g / (1 + torch.exp(-1.702 * g))
                out = out + weight * (w['moe.down.weight'][e] @ h + w['moe.down.bias'][e])
            rows.append(out)
        return torch.stack(rows).reshape(x.shape)

    assert_same(module, module, oracle, randn(2, 5, DIM), tolerance=1e-12)


def test_names_and_shapes():
    module = FeedForward(8, glu=True, mult=2, moe_experts=4, moe_dim_inner=5, moe_shared=2, moe_kind='sigmoid',
                         moe_score_bias=True, moe_router_bias=True)  # fmt: skip
    assert {name: tuple(t.shape) for name, t in module.state_dict().items()} == {
        'moe.router.weight': (4, 8),
        'moe.router.bias': (4,),
        'moe.score_bias': (4,),
        'moe.up_gate.weight': (4, 10, 8),
        'moe.up_gate.bias': (4, 10),
        'moe.down.weight': (4, 8, 5),
        'moe.down.bias': (4, 8),
        'moe.shared.0.proj.weight': (20, 8),
        'moe.shared.0.proj.bias': (20,),
        'moe.shared.2.weight': (8, 10),
        'moe.shared.2.bias': (8,),
    }
    assert [tuple(p.shape) for p in module.muon_parameters()] == [(4, 10, 8), (4, 8, 5), (20, 8), (8, 10)]
    assert not [n for n, _ in FeedForward(8, moe_experts=2, no_bias=True).named_parameters() if n.endswith('bias')]
    module = FeedForward(8, moe_experts=2, moe_dim_inner=5, moe_shared=2, moe_dim_shared=7, moe_shared_gate=True)
    assert module.moe.shared[2].weight.shape == (8, 7) and module.moe.shared_gate.weight.shape == (1, 8)
    module = FeedForward(400, mult=1, moe_experts=3, output_proj_depth=2, moe_shared=1)
    for weight, bound in ((module.moe.up.weight, 20**-1.0), (module.moe.router.weight, 20**-1.0)):
        assert weight.abs().max() <= bound and abs(weight.std() * 3**0.5 / bound - 1) < 0.05
    for output in module.output_layers:
        assert abs(output.weight.std() * (2 * 400 * 2) ** 0.5 - 1) < 0.03
    module = FeedForward(8, moe_experts=3, zero_init_output=True, moe_shared=1)
    assert (module(randn(2, 3, 8).float()) == 0).all()


@pytest.mark.parametrize('kind', ['softmax', 'sigmoid', 'topk_softmax'])
def test_one_expert_is_the_plain_feedforward(kind):
    for flags in (dict(), dict(glu=True, swish=True), dict(no_bias=True, custom_activation=nn.Tanh())):
        one = built(moe_experts=1, moe_top_k=1, moe_kind=kind, **flags)
        plain = FeedForward(DIM, mult=1, **flags).double()
        moe, first = one.moe, plain.ff[0].proj if flags.get('glu') else plain.ff[0][0]
        for linear, stack in ((first, moe.up_gate if flags.get('glu') else moe.up), (plain.ff[2], moe.down)):
            linear.weight.data.copy_(stack.weight[0])
            if linear.bias is not None:
                linear.bias.data.copy_(stack.bias[0])
        assert_close(one(randn(2, 5, DIM)), plain(randn(2, 5, DIM)))


def test_experts_that_get_nothing_and_experts_that_get_all(way):
    module = built(moe_router_bias=True, moe_top_k=1, moe_renormalise=False)
    with torch.no_grad():
        module.moe.router.bias.copy_(torch.tensor([0.0, 0, 0, 50, 0, 0]))
    module.zero_grad()
    module(randn(2, 9, DIM)).sum().backward()
    assert_close(module.moe.up.weight.grad[[0, 1, 2, 4, 5]], torch.zeros(5, DIM, DIM))
    assert module.moe.up.weight.grad[3].abs().max() > 0.1
    assert module(randn(2, 0, DIM)).shape == (2, 0, DIM) and module(randn(DIM)).shape == (DIM,)


def test_gradients_of_gradients(way):
    module = built(glu=True, moe_top_k=3, moe_shared=1)
    parameters = dict(module.named_parameters())

    def function(*tensors):
        return torch.func.functional_call(module, dict(zip(parameters, tensors[1:], strict=True)), (tensors[0],))

    inputs = [t.detach().requires_grad_() for t in (randn(1, 3, DIM), *parameters.values())]
    assert torch.autograd.gradgradcheck(function, inputs, fast_mode=True)


def test_half_precision_chooses_in_float32():
    module = built(moe_experts=4)
    seen = []
    module.moe.router.register_forward_hook(lambda module, args, out: seen.append(out.dtype))
    module.bfloat16()(randn(1, 3, DIM).bfloat16())
    with torch.autocast('cpu', dtype=torch.bfloat16):
        module.float()(randn(1, 3, DIM).float())
    assert seen == [torch.float32] * 2
    assert module.to('meta')(randn(2, 3, DIM).float().to('meta')).shape == (2, 3, DIM)


# the loss


def balance_of(module, x, mask, **flags):
    """x sum_e f_e p_e over the tokens that are real, in loops."""
    weights = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    count, share, tokens = x.new_zeros(EXPERTS), x.new_zeros(EXPERTS), 0
    for token, real in zip(x.reshape(-1, DIM), mask.flatten(), strict=True):
        if real:
            chosen, shares = chosen_by(weights, token, **choice_of(flags))
            for e, _ in chosen:
                count[e] += 1 / len(chosen)
            share, tokens = share + shares, tokens + 1
    return EXPERTS * (count / tokens * share / tokens).sum()


@pytest.mark.parametrize('name', ['plain', 'groups', 'softmax of the best'])
def test_balance_loss(name):
    flags = SHAPES[name]
    module, x = built(**flags, moe_balance_loss=0.5).train(), randn(2, 7, DIM)
    mask = torch.tensor([[1] * 7, [1, 0, 1, 1, 0, 0, 0]]).bool()
    for given, real in (({}, torch.ones_like(mask)), (dict(mask=mask), mask)):
        with AuxLosses() as losses:
            module(x, **given)
        (loss,) = losses.by_name.values()
        wanted = 0.5 * balance_of(module, x, real, **flags)
        assert losses.by_name.keys() == {'moe_balance'}
        assert_close(loss, wanted)
        found, other = (torch.autograd.grad(t, module.moe.router.weight)[0] for t in (loss, wanted))
        assert_close(found, other)
    with AuxLosses() as losses:
        module.eval()(x)
    assert not losses.by_name
    even = built(moe_experts=4, moe_top_k=4, moe_balance_loss=1.0).train()
    even.moe.router.weight.data.zero_()
    with AuxLosses() as losses:
        even(x)
    assert_close(losses.by_name['moe_balance'], torch.ones((), dtype=x.dtype))


def test_balance_loss_of_each_sequence():
    """arXiv:2412.19437: the loss of each row by itself, without its padding; rows of padding do not count."""
    flags = dict(moe_kind='sigmoid', moe_top_k=3)
    module = built(**flags, moe_balance_loss=0.5, moe_balance_per_sequence=True).train()
    x, mask = randn(3, 7, DIM), torch.tensor([[1] * 7, [1, 0, 1, 1, 0, 0, 0], [0] * 7]).bool()
    with AuxLosses() as losses:
        module(x, mask=mask)
    rows = [balance_of(module, x[i : i + 1], mask[i : i + 1], **flags) for i in range(2)]
    assert_close(losses.by_name['moe_balance'], 0.5 * sum(rows) / 2)
    together = built(**flags, moe_balance_loss=0.5).train()
    with AuxLosses() as whole:
        together(x, mask=mask)
    assert (whole.by_name['moe_balance'] - losses.by_name['moe_balance']).abs() > 1e-3


def test_balance_by_a_bias():
    """arXiv:2408.15664: after each step the bias of experts below the mean load grows, that of those above shrinks."""
    module, x = built(moe_balance='bias', moe_balance_rate=0.25, moe_top_k=1).train(), randn(4, 9, DIM)
    mask = torch.arange(9) < torch.tensor([[9], [4], [0], [7]])

    def loads():
        weights = {**dict(module.named_parameters()), **dict(module.named_buffers())}
        found = [chosen_by(weights, t, top_k=1)[0][0][0] for t in x[mask]]
        return torch.tensor([found.count(e) for e in range(EXPERTS)]).double()

    for _ in range(3):
        load, before = loads(), module.moe.score_bias.clone()
        module(x[:2], mask=mask[:2])  # two passes of one step
        module(x[2:], mask=mask[2:])
        module.eval()(x[:1, :1].expand(1, 500, DIM))  # no pass of the training
        module.train().on_step_end(0.5)
        assert_close(module.moe.score_bias, before + 0.25 * (load.mean() - load).sign())
    before = module.moe.score_bias.clone()
    module.on_step_end(0.5)
    assert_close(module.moe.score_bias, before)
    net = Decoder(dim=16, depth=1, heads=2, ff_moe_experts=4, ff_moe_balance='bias', ff_moe_balance_rate=1.0)
    for _ in range(40):
        net(torch.randn(8, 32, 16))
        net.layers[1][1].features.active[0].moe_balance_rate *= 0.9
        net.on_step_end(0.5)
    (tally,) = net.layers[1][1].features.active[0].tally
    assert tally.sum() == 0
    net(torch.randn(8, 64, 16))
    assert tally.max() < 1.3 * tally.double().mean()


def language(kind=Decoder, **flags):
    torch.manual_seed(0)
    stack = kind(dim=16, depth=2, heads=2, attn_dim_head=8, ff_moe_experts=4, ff_moe_balance_loss=0.1, **flags)
    return TransformerWrapper(num_tokens=11, max_seq_len=8, attn_layers=stack)


def test_the_loss_of_a_model():
    """Padding is left out, on both sides and wherever it stands; recomputing counts once; wrappers add and name it."""
    net, ids = language(Encoder), torch.randint(0, 11, (2, 8), generator=torch.Generator().manual_seed(0))
    real = torch.arange(8) < torch.tensor([[8], [5]])

    def loss_of(net, *args, **given):
        with AuxLosses() as losses:
            net.train()(*args, **given)
        return losses.by_name['moe_balance']

    other = torch.where(real, ids, (ids + 3) % 11)
    torch.testing.assert_close(loss_of(net, ids, mask=real), loss_of(net, other, mask=real))
    assert not torch.allclose(loss_of(net, ids), loss_of(net, other))
    first = loss_of(net, ids[:, :5])
    assert torch.isfinite(first)
    start, moved = torch.tensor([0, 3]), torch.stack((ids[0], ids[1].roll(3)))
    causal = language(rotary_pos_emb=True)
    causal.pos_emb = None
    torch.testing.assert_close(
        loss_of(causal, moved, seq_start_pos=start), loss_of(causal, ids, mask=real), rtol=1e-4, atol=1e-6
    )
    again = language(checkpoint_layers=True)
    model = AutoregressiveWrapper(language()).train()
    loss, (_, trace) = model(ids, return_outputs=True)
    plain = AutoregressiveWrapper(language(ff_moe_top_k=2)).eval()(ids)
    torch.testing.assert_close(loss, plain + trace.aux_losses['moe_balance'])
    torch.testing.assert_close(AutoregressiveWrapper(again).train()(ids), loss)


# what goes with it


@pytest.mark.parametrize('flags', [
    dict(solu=True), dict(post_act_ln=True), dict(glu=True, glu_mult_bias=True),
    dict(custom_activation=nn.PReLU()), dict(moe_top_k=7), dict(moe_groups=4, moe_kind='sigmoid'),
    dict(moe_groups=2, moe_kind='topk_softmax'), dict(moe_score_bias=True, moe_kind='sparsemixer'),
    dict(moe_balance='bias', moe_kind='topk_softmax'), dict(moe_zero_experts=2, moe_groups=2),
    dict(moe_zero_experts=2, dim_out=4), dict(moe_groups=2, moe_top_groups=3, moe_kind='sigmoid'),
    dict(moe_groups=6, moe_top_groups=1, moe_kind='sigmoid'), dict(moe_kind='hash'), dict(moe_top_k=0),
    dict(moe_bias=True, glu=True, glu_bias=False),
], ids=str)  # fmt: skip
def test_what_does_not_go_together_is_refused_by_name(flags):
    name = next(iter(flags))
    with pytest.raises(ConfigError, match='`moe_'):
        FeedForward(DIM, moe_experts=EXPERTS, **flags)
    if name == 'dim_out' or 'dim_out' in flags:
        return
    with pytest.raises(ConfigError, match='`ff_moe_') as refusal:
        Decoder(dim=16, depth=1, heads=2, ff_moe_experts=EXPERTS, **{f'ff_{n}': v for n, v in flags.items()})
    assert 'activation' in name or any(f'`ff_{n}' in str(refusal.value) for n in flags)


def test_dropout_and_soft_clamps_act():
    x = randn(2, 5, DIM)
    for flags in (dict(dropout=0.5), dict(sublayer_dropout=0.5)):
        module = built(**flags)
        assert_close(module(x), built()(x))
        assert not torch.equal(module.train()(x), module(x))
    soft = built(softclamp_value=0.7)
    w = dict(soft.named_parameters())
    assert_close(soft(x), mixture(w, x, act=lambda t: gelu(0.7 * torch.tanh(t / 0.7))))


def test_layers_of_their_own(logged):
    """A tuple gives each layer its own experts; what is off in a layer leaves the other flags without a warning."""
    net = Decoder(dim=16, depth=3, heads=2, ff_moe_experts=(None, 4, 2), ff_moe_top_k=1, ff_moe_shared=(None, 1, 2))
    names = [{n.split('.')[0] for n, _ in layer[1].named_parameters()} for layer in net.layers if layer.kind == 'f']
    assert names == [{'ff'}, {'moe'}, {'moe'}]
    assert [len(layer[1].moe.router.weight) for layer in net.layers[3::2]] == [4, 2]
    assert Decoder.from_config(net.config).state_dict().keys() == net.state_dict().keys()
    assert not logged
    text = net.explain()
    assert 'run          MixtureOfExperts (moe_experts=4, moe_top_k=1, moe_shared=1): Mixture of experts' in text
