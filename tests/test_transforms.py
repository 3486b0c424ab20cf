"""Models under torch's transforms: second derivatives, forward mode, gradients of every row, fake tensors, meta
construction, traced programs. Every flag, case by case; what differs is in a table, by name, with its reason.

`python tests/test_transforms.py` traces all cases, or those it is given by name; the tests trace others in each run.
"""

import functools
import operator
import random

import pytest
import torch
from law_cases import (
    ARGUMENT_CASES,
    BY_NAME,
    FLAG_CASES,
    INPUT_CASES,
    TABLES,
    as_one,
    build,
    each_of,
    each_tensor,
    inputs_for,
    model_of,
    one_of_each,
    randomise,
    run,
    shallow,
    sweep,
    weighted,
)
from oracles import assert_close
from torch._subclasses import FakeTensorMode
from torch.func import functional_call
from torch.fx.experimental.proxy_tensor import make_fx

CASES = (*ARGUMENT_CASES, *INPUT_CASES, *FLAG_CASES)
ONE_EACH = one_of_each(CASES)
FEW = [
    BY_NAME[name]
    for name in (
        'plain',
        'encoder',
        'continuous',
        'cross_attend=True',
        'rotary_pos_emb',
        'alibi_pos_bias',
        'attn_qk_norm',
    )
]
# gradients are of something else than the output, on purpose
OF_SOMETHING_ELSE = {
    'recycling': 'passes but the last are constants in a backward pass',
    'train_max_recycle_steps': 'passes but the last are constants in a backward pass',
}
quick = pytest.mark.parametrize('case', FEW, ids=str)


def every(cases=CASES):
    return lambda test: pytest.mark.nightly(pytest.mark.parametrize('case', cases, ids=str)(test))


def function_of(case):
    """A number as a function of the parameters, these, and a direction in which to change them."""
    net = model_of(shallow(case))
    inputs = inputs_for(net, case)
    parameters = {name: p.detach() for name, p in net.named_parameters()}
    generator = torch.Generator().manual_seed(3)
    way = {name: torch.randn(p.shape, generator=generator, dtype=p.dtype) for name, p in parameters.items()}
    return lambda parameters: weighted(as_one(net, functional_call(net, parameters, (), inputs))), parameters, way


def slopes(function, parameters, **options):
    """The gradients of all parameters in a backward pass, zeros where there is none."""
    leaves = {name: p.clone().requires_grad_() for name, p in parameters.items()}
    found = torch.autograd.grad(function(leaves), [*leaves.values()], materialize_grads=True, **options)
    return leaves, dict(zip(leaves, found, strict=True))


def along(slope, way):
    return sum((slope[name] * way[name]).sum() for name in way)


# derivatives


def check_derivatives(case):
    """Forward mode is the gradient along a direction, and that of the gradient is the second backward pass."""
    function, parameters, way = function_of(case)
    leaves, slope = slopes(function, parameters, create_graph=True)
    (_, tangent), (_, bent) = (torch.func.jvp(f, (parameters,), (way,)) for f in (function, torch.func.grad(function)))
    if case.name in OF_SOMETHING_ELSE:
        assert not torch.allclose(tangent, along(slope, way))
        return
    assert_close(tangent, along(slope, way).detach(), 'slope')
    twice = torch.autograd.grad(along(slope, way), [*leaves.values()], allow_unused=True)
    for name, found in zip(leaves, twice, strict=True):
        assert_close(torch.zeros_like(bent[name]) if found is None else found, bent[name], f'second of {name}')


@pytest.mark.costly
@quick
def test_second_derivatives_and_forward_mode(case):
    check_derivatives(case)


@every([case for case in CASES if case not in FEW])
def test_second_derivatives_and_forward_mode_of_every_flag(case):
    check_derivatives(case)


# gradients of every row


def check_rows(case):
    net = model_of(shallow(case))
    inputs = inputs_for(net, case)
    shared = {name: value for name, value in inputs.items() if name in TABLES or not has_rows(value)}
    of_rows = {name: value for name, value in inputs.items() if name not in shared}
    axes = {name: (None, 0) if name == 'deep_embeds_and_ids' else 0 for name in of_rows}
    parameters = {name: p.detach() for name, p in net.named_parameters()}

    def loss(parameters, row):
        row = {name: each_of(name, lambda t: t.unsqueeze(0), value) for name, value in row.items()}
        return weighted(as_one(net, functional_call(net, parameters, (), {**row, **shared})))

    def output(row):
        row = {name: each_of(name, lambda t: t.unsqueeze(0), value) for name, value in row.items()}
        return as_one(net, net(**row, **shared))

    wanted = run(net, inputs)
    for grads in (True, False):
        with torch.set_grad_enabled(grads):
            outputs = torch.vmap(output, in_dims=(axes,), randomness='different')(of_rows)
        assert_close(outputs.squeeze(1), wanted)
    found = torch.vmap(torch.func.grad(loss), in_dims=(None, axes), randomness='different')(parameters, of_rows)
    for at in range(len(inputs['x'])):
        row = {name: each_of(name, operator.itemgetter(at), value) for name, value in of_rows.items()}
        _, wanted = slopes(functools.partial(loss, row=row), parameters)
        for name, slope in wanted.items():
            assert_close(found[name][at], slope, f'gradient of {name}')


def has_rows(value):
    return torch.is_tensor(value) or isinstance(value, (dict, tuple))


@quick
def test_gradients_of_every_row(case):
    check_rows(case)


@pytest.mark.filterwarnings('ignore:There is a performance drop:UserWarning')  # a GRU row by row
@every([case for case in CASES if case not in FEW])
def test_gradients_of_every_row_for_every_flag(case):
    check_rows(case)


# tensors without values


def singles(inputs):
    return each_tensor(lambda t: t.float() if t.is_floating_point() else t, inputs)


def check_fake(case):
    """Built without values, a model gives outputs and gradients without values, of the same shapes."""
    case = shallow(case)
    real = model_of(case)
    wanted = run(real, inputs_for(real, case)).shape
    with FakeTensorMode():
        net = build(case).eval()
        inputs = singles(inputs_for(net, case))
        out = run(net, inputs)
        grads = torch.autograd.grad(out.sum(), [*net.parameters()], allow_unused=True)
    assert (out.shape, out.dtype) == (wanted, torch.float32)
    for (name, p), grad in zip(net.named_parameters(), grads, strict=True):
        assert grad is None or grad.shape == p.shape, name
    assert any(grad is not None for grad in grads)


@quick
def test_fake_tensors(case):
    check_fake(case)


# a module of the user's own, made outside of the mode, has values
WITH_VALUES = {'token_emb', 'to_logits', 'continuous.project_in', 'continuous.project_out', 'attn_hybrid_module'}


@every([case for case in ONE_EACH if case not in FEW and case.name not in WITH_VALUES])
def test_fake_tensors_for_every_feature(case):
    check_fake(case)


# weights that come later


def spoil(net):
    """Memory as it may be found."""
    with torch.no_grad():
        for t in (*net.parameters(), *net.buffers()):
            t.fill_(torch.nan if t.is_floating_point() else True if t.dtype == torch.bool else 12345)


def check_meta(case):
    """Built without memory, then given weights, a model is the same."""
    case = shallow(case)
    net = randomise(build(case))
    inputs = singles(inputs_for(net, case))
    wanted = run(net, inputs)
    for assign in (False, True):
        with torch.device('meta'):
            other = build(case).eval()
        if not assign:
            spoil(other.to_empty(device='cpu'))
        other.load_state_dict(net.state_dict(), assign=assign)
        assert torch.equal(run(other, inputs), wanted)


ON_META = ['alibi_pos_bias', 'alibi_num_heads', 'scaled_sinu_pos_emb', 'rotary_xpos', 'plain']


@pytest.mark.parametrize('name', ON_META)
def test_weights_given_to_a_model_without_memory(name):
    check_meta(BY_NAME[name])


@every([case for case in ONE_EACH if case.name not in ON_META])
def test_weights_given_to_a_model_without_memory_for_every_feature(case):
    check_meta(case)


# programs


def check_programs(case):
    """The gradient of traced steps, for other values; and the output, for other sizes as well."""
    net = model_of(shallow(case))
    parameters = {name: p.detach() for name, p in net.named_parameters()}

    def output(parameters, inputs):
        return as_one(net, functional_call(net, parameters, (), inputs))

    gradient = torch.func.grad(lambda *args: weighted(output(*args)))
    inputs, others = inputs_for(net, case), inputs_for(net, case, seed=5)
    for name, found in make_fx(gradient)(parameters, inputs)(parameters, others).items():
        assert_close(found, gradient(parameters, others)[name], f'gradient of {name}')
    traced = make_fx(output, tracing_mode='symbolic', _allow_non_fake_inputs=True)(parameters, inputs)
    others = inputs_for(net, case, batch=4, length=8)
    assert_close(traced(parameters, others), output(parameters, others))


def check_jacobians(case):
    """Row by row, column by column, and as a program along a direction."""
    net = model_of(shallow(case))
    inputs = inputs_for(net, case, batch=2, length=4)
    # the others are constants: `linearize` changes values in place that torch's `rms_norm` and GRU make of parameters
    parameters = {name: p.detach() for name, p in net.named_parameters()}
    name, p = list(parameters.items())[-1]

    def output(p):
        return as_one(net, functional_call(net, {**parameters, name: p}, (), inputs)).flatten()[:5]

    way = torch.ones_like(p).cumsum(dim=0)
    jacobian = torch.func.jacrev(output)(p)
    assert_close(torch.func.jacfwd(output)(p), jacobian, 'jacobian')
    along = torch.func.linearize(output, p)[1]
    assert_close(along(way), (jacobian * way).flatten(1).sum(dim=1), 'linear map')


def check_both(case):
    check_programs(case)
    check_jacobians(case)


# torch's own, of programs that read constants
programs = pytest.mark.filterwarnings('ignore:Attempted to insert a get_attr:UserWarning')


@programs
@pytest.mark.slow
def test_programs_and_jacobians():
    check_both(BY_NAME['rotary_pos_emb'])


@programs
@pytest.mark.slow
def test_programs_and_jacobians_of_others():
    for case in random.Random(0).sample(CASES, 4):
        check_both(case)


if __name__ == '__main__':
    sweep(check_both, CASES)
