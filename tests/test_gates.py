"""Gates in place of residual sums, against the formulas of their paper, one feature at a time."""

import math

import pytest
import torch
from oracles import assert_close, randn, randomised

from x_transformers import Decoder, Encoder
from x_transformers.features.gates import GATES, GRUGating, GTrXLGate
from x_transformers.flags import ConfigError

SHAPE = dict(dim=6, depth=1, heads=2, attn_dim_head=3, ff_mult=1, verbose=False)
BIASED = [name for name in GATES if name not in ('grucell', 'input')]


def sigma(value):
    return 1 / (1 + math.exp(-value))


def times(matrix, vector):
    """Each output by itself, as numbers."""
    return [sum(w * v for w, v in zip(row, vector, strict=True)) for row in matrix.tolist()]


def by_hand(name, w, x, y):
    """The paper's cells on one token: numbers in, numbers out."""
    bias = w['gate_bias'].tolist() if 'gate_bias' in w else None
    if name == 'gtrxl':
        matrices = (*w['w_y.weight'].chunk(3), *w['w_x.weight'].chunk(2))
        r_y, z_y, g_y, r_x, z_x = (times(m, v) for m, v in zip(matrices, (y, y, y, x, x), strict=True))
        reset = [sigma(a + b) * value for a, b, value in zip(r_y, r_x, x, strict=True)]
        z = [sigma(a + b - c) for a, b, c in zip(z_y, z_x, bias, strict=True)]
        new = [math.tanh(a + b) for a, b in zip(g_y, times(w['u_g.weight'], reset), strict=True)]
        return [(1 - a) * value + a * b for a, value, b in zip(z, x, new, strict=True)]
    own = times(w['w_g.weight'], y if name == 'sigtanh' else x)
    if name == 'input':
        return [sigma(a) * s + b for a, s, b in zip(own, x, y, strict=True)]
    if name == 'output':
        return [s + sigma(a - c) * b for a, c, s, b in zip(own, bias, x, y, strict=True)]
    if name == 'highway':
        carry = [sigma(a + c) for a, c in zip(own, bias, strict=True)]
        return [a * s + (1 - a) * b for a, s, b in zip(carry, x, y, strict=True)]
    up = times(w['u_g.weight'], y)
    return [s + sigma(a - c) * math.tanh(u) for a, c, s, u in zip(own, bias, x, up, strict=True)]


@pytest.mark.parametrize('pre_relu', [False, True])
@pytest.mark.parametrize('name', [name for name in GATES if name != 'grucell'])
def test_the_formula(name, pre_relu):
    module = randomised(GATES[name](5, pre_relu=pre_relu))
    x, y = randn(2, 3, 5), randn(2, 3, 5, seed=1)
    found = module(y, x)
    y = y.relu() if pre_relu else y
    for b in range(2):
        for i in range(3):
            expected = by_hand(name, module.state_dict(), x[b, i].tolist(), y[b, i].tolist())
            assert_close(found[b, i], torch.tensor(expected, dtype=torch.float64), tolerance=1e-12)


def test_they_learn_where_the_gates_stand():
    for name in BIASED:
        module = randomised(GATES[name](4))
        module(randn(3, 4), randn(3, 4, seed=1)).square().sum().backward()
        assert all(weight.grad.abs().sum() > 0 for weight in module.parameters()), name


def test_a_bias_that_keeps_all():
    x, y = randn(2, 3, 6), randn(2, 3, 6, seed=1)
    for name in BIASED:
        module = randomised(GATES[name](6))
        module.gate_bias.data.fill_(40.0)
        assert_close(module(y, x), x, tolerance=1e-12)
    # and one that keeps nothing: what is new stands alone
    module = GTrXLGate(6, gate_bias=-40.0).double()
    module.u_g.weight.data.zero_()
    module.w_y.weight.data[12:] = torch.eye(6)
    assert_close(module(y, x), y.tanh(), tolerance=1e-12)


def test_a_gru_cell_with_a_bias():
    module = GRUGating(6).double()
    for weight in module.parameters():
        torch.nn.init.zeros_(weight)
    x = randn(2, 6)
    assert_close(module(torch.zeros_like(x), x), 0.5 * x)
    module.gru.bias_ih.data[6:12] = 2.0
    assert_close(module(torch.zeros_like(x), x), sigma(2.0) * x)
    # where `gate_bias` puts it
    torch.manual_seed(0)
    plain = GRUGating(6).state_dict()
    torch.manual_seed(0)
    biased = GRUGating(6, gate_bias=2.0).state_dict()
    expected = torch.cat((torch.zeros(6), torch.full((6,), 2.0), torch.zeros(6)))
    assert_close(biased['gru.bias_ih'] - plain['gru.bias_ih'], expected, tolerance=1e-6)
    assert all(torch.equal(biased[name], plain[name]) for name in plain if name != 'gru.bias_ih')


@pytest.mark.parametrize('gate', GATES)
def test_names_and_first_values(gate):
    stack = Decoder(**SHAPE, gate_residual=True, residual_fn_kwargs=dict(gate=gate))
    own = {name: tuple(w.shape) for name, w in stack.layers[1][2].named_parameters()}
    assert (
        own
        == {
            'grucell': {
                'gru.weight_ih': (18, 6),
                'gru.weight_hh': (18, 6),
                'gru.bias_ih': (18,),
                'gru.bias_hh': (18,),
            },
            'gtrxl': {'gate_bias': (6,), 'w_y.weight': (18, 6), 'w_x.weight': (12, 6), 'u_g.weight': (6, 6)},
            'input': {'w_g.weight': (6, 6)},
            'output': {'gate_bias': (6,), 'w_g.weight': (6, 6)},
            'highway': {'gate_bias': (6,), 'w_g.weight': (6, 6)},
            'sigtanh': {'gate_bias': (6,), 'w_g.weight': (6, 6), 'u_g.weight': (6, 6)},
        }[gate]
    )
    if gate in BIASED:
        assert (stack.layers[0][2].gate_bias == 2.0).all()
    limit = math.sqrt(6 / 12)
    assert all(
        w.abs().max() <= limit for name, w in stack.layers[0][2].named_parameters() if name.startswith(('w', 'u'))
    )


def test_a_stack_of_gates():
    """Written out: the stream of a layer is the gate of itself and of the branch behind a norm."""
    stack = Encoder(**{**SHAPE, 'depth': 2}, gate_residual=True, residual_fn_kwargs=dict(gate='gtrxl', pre_relu=True))
    stack = randomised(stack)
    x = x_in = randn(2, 5, 6)
    for norms, branch, residual in stack.layers:
        out = branch(norms[0](x))
        x = residual.combine(x, (out if torch.is_tensor(out) else out[0]).relu())
    assert_close(stack(x_in), stack.final_norm(x), tolerance=1e-12)


@pytest.mark.parametrize('gate', [name for name in GATES if name != 'grucell'])
def test_gradients_stay_alike_over_the_depth(gate):
    """Of 24 layers, from the values that training starts with, taken relative to the stream, which gates may shrink."""
    torch.manual_seed(0)
    sizes = dict(dim=64, depth=24, heads=2, attn_dim_head=32, verbose=False)
    stack = Decoder(**sizes, gate_residual=True, residual_fn_kwargs=dict(gate=gate))
    streams = []
    for layer in stack.layers:
        layer[2].register_forward_hook(lambda module, inputs, out: (out.retain_grad(), streams.append(out))[0])
    (stack(torch.randn(4, 8, 64)) * torch.randn(4, 8, 64)).sum().backward()
    first, last = (x.grad.norm().item() * x.norm().item() for x in (streams[0], streams[-1]))
    assert len(streams) == 48 and 0.3 < first / last < 3


@pytest.mark.parametrize(
    ('options', 'flags', 'said'),
    [
        (dict(gate='gru'), {}, r"`gate` of `residual_fn_kwargs` must be one of grucell, gtrxl, input.*got 'gru'"),
        (dict(gate=3), {}, r'`gate` of `residual_fn_kwargs` must .*got 3'),
        (dict(gate='gtrxl', gate_bais=1.0), {}, "got 'gate_bais', which the gate 'gtrxl' does not have.*gate_bias"),
        (dict(tanh=False), {}, "got 'tanh', which the gate 'grucell' does not have"),
        (dict(gate_bias='big'), {}, "`gate_bias` of `residual_fn_kwargs` must be a number or None, got 'big'"),
        (dict(pre_relu=1), {}, '`pre_relu` of `residual_fn_kwargs` must be True or False, got 1'),
        (dict(gate='input', gate_bias=1.0), {}, "cannot be combined with the gate 'input': it has no bias"),
        (dict(gate='gtrxl'), dict(pre_norm=False), "`pre_norm=False` cannot be combined with the gate 'gtrxl'"),
        (
            dict(gate='gtrxl'),
            dict(branch_post_norm=True),
            "`branch_post_norm` cannot be combined with the gate 'gtrxl'",
        ),
    ],
)
def test_refusals(options, flags, said):
    with pytest.raises(ConfigError, match=said):
        Decoder(**SHAPE, gate_residual=True, residual_fn_kwargs=options, **flags)
