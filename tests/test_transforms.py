"""Models under torch's transforms: second derivatives, forward mode, gradients of every row, fake tensors, meta
construction. Every flag, case by case; what differs is in a table, by name, with its reason."""

import copy
import functools
import operator

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
    refused,
    run,
    shallow,
    weighted,
)
from oracles import assert_close
from torch import nn
from torch._subclasses import FakeTensorMode
from torch.func import functional_call

CASES = [case for case in (*ARGUMENT_CASES, *INPUT_CASES, *FLAG_CASES) if not refused(case)]
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
# torch scripts its own rules of forward mode
scripts = pytest.mark.filterwarnings('ignore:.torch.jit:DeprecationWarning')


def every(cases=CASES):
    return lambda test: pytest.mark.slow(pytest.mark.parametrize('case', cases, ids=str)(test))


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


@scripts
@quick
def test_second_derivatives_and_forward_mode(case):
    check_derivatives(case)


@scripts
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


@every([case for case in CASES if case not in FEW])
def test_gradients_of_every_row_for_every_flag(case):
    check_rows(case)


# tensors without values


def faked(module, mode):
    """The same module with fake tensors."""
    module = copy.deepcopy(module)
    for part in module.modules():
        for kept in (part._parameters, part._buffers):
            for name, t in kept.items():
                if t is not None:
                    fake = mode.from_tensor(t.detach())
                    kept[name] = nn.Parameter(fake, t.requires_grad) if isinstance(t, nn.Parameter) else fake
    return module


def check_fake(case):
    net, mode = model_of(shallow(case)), FakeTensorMode()
    inputs = inputs_for(net, case)
    wanted, net = run(net, inputs), faked(net, mode)
    inputs = {name: each_tensor(mode.from_tensor, value) for name, value in inputs.items()}
    with mode:
        out = run(net, inputs)
        grads = torch.autograd.grad(out.sum(), [*net.parameters()], allow_unused=True)
    assert (out.shape, out.dtype) == (wanted.shape, wanted.dtype)
    assert any(grad is not None for grad in grads)


@quick
def test_fake_tensors(case):
    check_fake(case)


@every([case for case in ONE_EACH if case not in FEW])
def test_fake_tensors_for_every_feature(case):
    check_fake(case)


def spoil(net):
    """Memory as it may be found."""
    with torch.no_grad():
        for t in (*net.parameters(), *net.buffers()):
            t.fill_(torch.nan if t.is_floating_point() else True if t.dtype == torch.bool else 12345)


def check_meta(case):
    """Built without memory, then given weights, a model is the same."""
    case = shallow(case)
    net = randomise(build(case))
    inputs = {n: each_tensor(lambda t: t.float() if t.is_floating_point() else t, v)
              for n, v in inputs_for(net, case).items()}  # fmt: skip
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
