"""Adaptive computation time around any step: Graves' formula, element by element; elements that go on, or all."""

import copy

import pytest
import torch
from oracles import assert_close, randn
from torch import nn

from x_transformers import ACT
from x_transformers.flags import ConfigError


def built(cell=nn.GRUCell, wide=3, bias=-0.5, **options):
    torch.manual_seed(0)
    net = ACT(cell(wide + 1, 5), dim=5, **{'max_steps': 6, 'eps': 0.1, 'ponder_weight': 0.5, **options}).double()
    with torch.no_grad():
        net.halt.weight.copy_(randn(1, 5) * 1.5)
        net.halt.bias.fill_(bias)
    return net


def by_graves(net, state, x):
    """One element, without a batch: the state of each step and its weight."""
    states, weights, spent = [], [], 0.0
    for number in range(1, net.max_steps + 1):
        given = torch.cat((x, x.new_tensor([float(number == 1)])))[None]
        state = net.transition(given, state)
        states.append(state)
        first = state[0] if isinstance(state, tuple) else state
        p = net.halt(first[0]).sigmoid().squeeze()
        if spent + p >= 1 - net.eps or number == net.max_steps:
            weights.append(1 - spent)
            break
        weights.append(p)
        spent = spent + p
    if isinstance(state, tuple):
        out = tuple(sum(w * s[i][0] for w, s in zip(weights, states, strict=True)) for i in (0, 1))
    else:
        out = sum(w * s[0] for w, s in zip(weights, states, strict=True))
    return out, len(states) + weights[-1], len(states)


@pytest.mark.parametrize('dense', [False, True])
@pytest.mark.parametrize('cell', [nn.GRUCell, nn.LSTMCell])
def test_the_formula(cell, dense):
    net, x, h, c = built(cell, dense=dense), randn(9, 3).requires_grad_(), randn(9, 5), randn(9, 5)
    pair = cell is nn.LSTMCell
    mask = torch.tensor([True] * 7 + [False] * 2)
    found = net((h, c) if pair else h, x, mask=mask)
    rows = [by_graves(net, (h[i][None], c[i][None]) if pair else h[i][None], x[i]) for i in range(7)]
    wanted = torch.stack([torch.cat(row[0]) if pair else row[0] for row in rows])
    out = torch.cat(found.state, dim=-1) if pair else found.state
    ponder = torch.stack([row[1] for row in rows])
    assert len({row[2] for row in rows}) > 2
    assert found.steps.tolist() == [row[2] for row in rows] + [0, 0]
    assert_close(out[:7], wanted)
    assert_close(out[7:], (torch.cat((h, c), dim=-1) if pair else h)[7:])
    assert_close(found.ponder[:7], ponder)
    assert_close(found.loss, 0.5 * ponder.mean())
    leaves = [x, *net.parameters()]
    grads = torch.autograd.grad(out[:7].sin().sum() + found.loss, leaves)
    for one, other in zip(grads, torch.autograd.grad(wanted.sin().sum() + 0.5 * ponder.mean(), leaves), strict=True):
        assert_close(one, other, 'gradient')


def test_only_those_that_go_on_run():
    """Rows given to the step are those of all elements and their steps; with `dense` all, at each."""
    for dense in (False, True):
        net, rows = built(dense=dense), []
        net.transition.register_forward_pre_hook(lambda module, inputs, rows=rows: rows.append(len(inputs[0])))
        steps = net(randn(40, 5), randn(40, 3)).steps
        assert 40 < steps.sum() < 240
        assert sum(rows) == (240 if dense else steps.sum())


class Step(nn.Linear):
    """A block that reads a state alone."""

    def __init__(self, *_):
        super().__init__(5, 5)

    def forward(self, s):
        return s + super().forward(s).tanh()


@pytest.mark.parametrize('dense', [False, True])
def test_around_a_block(dense):
    """Of tokens; at most one step is the plain step, at once halts after one, and never takes all."""
    x = randn(2, 4, 5)
    for options in (dict(max_steps=1), dict(bias=30.0)):
        net = built(Step, dense=dense, **options)
        with torch.no_grad():
            net.halt.weight.zero_()
        found = net(x)
        assert torch.equal(found.state, net.transition(x)) and (found.ponder == 2).all()
    net = built(Step, dense=dense, bias=-40.0)
    with torch.no_grad():
        net.halt.weight.zero_()
    wanted = x
    for _ in range(6):
        wanted = net.transition(wanted)
    assert_close(net(x).state, wanted)
    assert (net(x).steps == 6).all()


def test_names_and_initial_values():
    net = ACT(nn.GRUCell(4, 5), dim=5)
    assert [n for n in net.state_dict() if 'halt' in n] == ['halt.weight', 'halt.bias']
    assert net.halt.weight.shape == (1, 5) and not net.halt.weight.any() and net.halt.bias == 1
    assert all(n.startswith(('halt.', 'transition.')) for n in net.state_dict())
    copy.deepcopy(net).load_state_dict(net.state_dict())


@pytest.mark.costly
def test_compiled_in_one_graph():
    net, x, h = built(), randn(4, 3), randn(4, 5)
    assert_close(torch.compile(net, fullgraph=True, backend='eager')(h, x).state, net(h, x).state)


@pytest.mark.parametrize(
    ('options', 'message'),
    [
        (dict(eps=0.5), '`eps` must be a number between 0 and 0.5, got 0.5'),
        (dict(eps=0), r'`eps` must .*got 0'),
        (dict(max_steps=0), '`max_steps` must be an integer of at least 1, got 0'),
        (dict(ponder_weight=-1), r'`ponder_weight` must .*got -1'),
        (dict(transition=3), r'`transition` must .*got 3'),
    ],
    ids=str,
)
def test_refusals(options, message):
    with pytest.raises(ConfigError, match=message):
        ACT(**{'transition': nn.GRUCell(4, 5), 'dim': 5, **options})


def test_refusals_of_calls():
    net = built()
    for inputs, message in (
        ((randn(2, 4), randn(2, 3)), r'`state` must '),
        ((randn(2, 5), randn(3, 3)), r'`x` has elements of shape \(3,\), those of the state are \(2,\)'),
        ((randn(2, 5), randn(2, 3), torch.ones(2)), '`mask` must be bool, got torch.float32'),
    ):
        with pytest.raises(ValueError, match=message):
            net(*inputs)
