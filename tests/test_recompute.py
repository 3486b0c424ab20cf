"""Layers that run again in the backward pass: the same numbers, less memory."""

import gc

import pytest
import torch
from law_cases import (
    ARGUMENT_CASES,
    BY_NAME,
    CASES,
    CROSS_CASES,
    Case,
    build,
    compiled_step_law,
    inputs_for,
    others_nightly,
    randomise,
    run,
    shallow,
    weighted,
)
from oracles import assert_close, randn
from sweeps import is_late
from torch.profiler import ProfilerActivity, profile

from x_transformers import AutoregressiveWrapper, Decoder, Encoder, TransformerWrapper
from x_transformers.features import recompute
from x_transformers.flags import ConfigError

DROPOUTS = dict(ff_dropout=0.3, attn_dropout=0.2)


def training_step(case, **options):
    """Output, gradients and what is left behind, of a training step with the dropout of a seed."""
    net = randomise(build(case).double()).train()
    inputs = inputs_for(net, case)
    torch.manual_seed(1)
    out, trace = run(net, inputs, return_intermediates=True, **options)
    names, parameters = zip(*net.named_parameters(), strict=True)
    loss = weighted(out) + sum(weighted(t) for t in trace.layer_hiddens) / 10  # what is left behind has gradients, too
    grads = torch.autograd.grad(loss, parameters, allow_unused=True)
    return out, dict(zip(names, grads, strict=True)), trace


def same_step(plain, again):
    """`plain` is a training step, or the case of one."""
    out, grads, trace = training_step(plain) if isinstance(plain, Case) else plain
    other_out, other_grads, other_trace = training_step(again)
    assert torch.equal(other_out, out)
    assert other_grads.keys() == grads.keys()
    for name, grad in grads.items():
        assert (other_grads[name] is None) == (grad is None), name
        if grad is not None:
            assert_close(other_grads[name], grad, f'gradient of {name}')
    for name, left in vars(trace).items():  # nothing twice
        if isinstance(left, (list, dict)):
            assert len(getattr(other_trace, name)) == len(left), name
    hiddens = (each.hiddens + each.layer_hiddens for each in (trace, other_trace))
    for before, after in zip(*hiddens, strict=True):
        assert torch.equal(before, after)
    for before, after in zip(trace.attn_intermediates, other_trace.attn_intermediates, strict=True):
        for one, other in zip(before.cached_kv or (), after.cached_kv or (), strict=True):
            assert one is other is None or torch.equal(one, other)


NIGHTLY = pytest.mark.nightly
# what keeps nothing between layers, and what runs them its own way
LAYERED = [case for case in CASES if not {'reversible', 'act_halting'} & set(case.stack)]


def dropping(case):
    """The same with dropout, and a training step of it; without where that is refused."""
    dropped = case.with_keywords(**{name: rate for name, rate in DROPOUTS.items() if name not in case.stack})
    try:
        return dropped, training_step(dropped)
    except ConfigError:
        return case, training_step(case)


def others_and_sizes_nightly(cases):
    """The widths of what is around the stack are no matter of layers; of the others one half is for the suite."""
    sizes = [case for case in cases if case in ARGUMENT_CASES and case.model and not case.stack]
    known = others_nightly(cases, inputs_once=True)
    late = [case in sizes or is_late(2, 'again', case) for case in cases]
    return [
        pytest.param(case, marks=NIGHTLY) if at else each for case, each, at in zip(cases, known, late, strict=True)
    ]


@pytest.mark.parametrize('case', others_and_sizes_nightly([*LAYERED, *CROSS_CASES]), ids=str)
def test_the_same_step(case):
    """Outputs are equal to the bit, gradients exact, with dropout, whatever else is on."""
    plain, step = dropping(shallow(case) if case.flag else case)  # of values of other layers, two have to be there
    same_step(step, plain.with_keywords(checkpoint_layers=True))


@NIGHTLY
@pytest.mark.parametrize('length', [True, 3])
@pytest.mark.parametrize('case', [*LAYERED, *CROSS_CASES], ids=str)
def test_the_same_step_of_two_blocks(case, length):
    plain, step = dropping(case)
    same_step(step, plain.with_keywords(checkpoint_layers=length))


STACKED = dict(num_residual_streams=2, integrate_layers=True, add_value_residual=True, shift_tokens=1)


@pytest.mark.parametrize(
    'stack',
    [
        dict(layer_dropout=0.4),
        dict(layer_dropout=0.4, shift_tokens=1, mv_split_residual=True),
        dict(STACKED, qkv_receive_diff_residuals=True),
        dict(residual_attn=True, unet_skips=True, add_value_residual=True, resi_dual=True),
        dict(weight_tie_layers=True, gate_residual=True, residual_attn=True),
        dict(attn_selective=True, attn_gumbel_softmax=True),
    ],
    ids=lambda stack: ' '.join(stack),
)
@pytest.mark.parametrize('lengths', [(True, 3), pytest.param((2, 100), marks=NIGHTLY)], ids=str)
def test_deeper_stacks(stack, lengths):
    case = Case('deep', stack=dict(depth=3, ff_dropout=0.3, **stack))
    step = training_step(case)
    for length in lengths:
        same_step(step, case.with_keywords(checkpoint_layers=length))


def test_each_layer_runs_twice_in_a_training_step():
    net = Decoder(dim=16, depth=3, heads=2, attn_dim_head=8, checkpoint_layers=True, verbose=False)
    runs = [0] * len(net.layers)
    for index, layer in enumerate(net.layers):
        layer.register_forward_pre_hook(lambda *_, index=index: runs.__setitem__(index, runs[index] + 1))
    net(randn(2, 5, 16).float()).sum().backward()
    assert runs == [2] * 6


@pytest.mark.parametrize('mode', ['evaluating', 'without gradients'])
def test_otherwise_it_changes_nothing(mode, monkeypatch):
    """Outside of training, and where no gradient is wanted, nothing is set up for a second run."""
    net = Decoder(dim=16, depth=2, heads=2, attn_dim_head=8, checkpoint_layers=True, verbose=False)
    net.train(mode != 'evaluating')
    monkeypatch.setattr(recompute, 'recompute', None)
    with torch.set_grad_enabled(mode == 'evaluating'):
        net(torch.randn(2, 5, 16))
    with pytest.raises(TypeError):
        net.train()(torch.randn(2, 5, 16))


@pytest.mark.parametrize('value', [-1, 1.5, 'all'])
def test_bad_values(value):
    with pytest.raises(ConfigError, match='`checkpoint_layers` must be'):
        Decoder(dim=16, depth=2, checkpoint_layers=value)


def language_model(length, **stack):
    torch.manual_seed(0)
    stack = Decoder(dim=16, depth=3, heads=2, attn_dim_head=8, checkpoint_layers=length, verbose=False, **stack)
    net = TransformerWrapper(num_tokens=30, max_seq_len=12, num_memory_tokens=2, attn_layers=stack)
    return AutoregressiveWrapper(net).double()


def test_losses_and_memories():
    """Through the wrapper, from memories of an earlier segment, with the penalty of attention logits."""
    ids, grads = torch.randint(0, 30, (2, 12)), []
    for length in (False, True, 2):
        model = language_model(length, attn_dropout=0.1)
        torch.manual_seed(1)
        _, mems = model.net(ids, return_mems=True, mems=None)
        loss = model(ids) + model.net(ids[:, 6:], mems=[m[:, :0] for m in mems]).square().mean()
        loss = loss + model.net(ids, return_attn_z_loss=True)[1].attn_z_loss
        grads.append(torch.autograd.grad(loss, list(model.parameters())))
    for other in grads[1:]:
        for wanted, grad in zip(grads[0], other, strict=True):
            assert_close(grad, wanted, 'gradient')


def test_gradients_of_gradients():
    x = randn(2, 5, 16)
    found = []
    for length in (False, True):
        torch.manual_seed(0)
        net = Encoder(dim=16, depth=2, heads=2, attn_dim_head=8, attn_flash=False, checkpoint_layers=length).double()
        (grad,) = torch.autograd.grad(net(x.requires_grad_()).sin().sum(), x, create_graph=True)
        found.append(torch.autograd.grad(grad.square().sum(), list(net.layers.parameters()), allow_unused=True))
    for wanted, grad in zip(*found, strict=True):
        if wanted is not None:
            assert_close(grad, wanted, 'gradient of the gradient')


# memory


def streams_held(depth, length, **flags):
    """Memory that a forward pass holds for the backward pass, in units of the stream (b n d)."""
    torch.manual_seed(0)
    net = Decoder(dim=32, depth=depth, heads=4, attn_dim_head=8, checkpoint_layers=length, verbose=False, **flags)
    x = torch.randn(2, 64, 32)
    net(x)  # tables of positions are made once
    gc.collect()
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiled:
        out = net(x)
    held = sum(event.self_cpu_memory_usage for event in profiled.key_averages())
    del out
    return held / (x.numel() * x.element_size())


MORE = (dict(attn_flash=False, rotary_pos_emb=True), dict(integrate_layers=True))


@pytest.mark.slow
@pytest.mark.parametrize('flags', [{}, *(pytest.param(flags, marks=NIGHTLY) for flags in MORE)], ids=str)
def test_memory(flags):
    """At depth 8 (16 branches) less than a fifth of it is held; each further block adds its two streams, not all."""
    plain, again, segments = ([streams_held(depth, k, **flags) for depth in (4, 8)] for k in (False, True, 4))
    assert again[1] < plain[1] / 5 and segments[1] < again[1] / 1.4
    growth = [(deep - shallow) / 4 for shallow, deep in (plain, again, segments)]
    assert growth[0] > 15  # streams per block
    assert 2 <= growth[1] < 3.5  # one per branch, and the state of the random numbers
    assert growth[2] < growth[1]


# compiled


@pytest.mark.slow
@pytest.mark.parametrize('length', [True, 3])
@pytest.mark.parametrize('name', ['plain', 'add_value_residual', 'residual_attn', 'integrate_layers', 'unet_skips'])
def test_compiled_in_one_graph(name, length):
    compiled_step_law(BY_NAME[name].with_keywords(checkpoint_layers=length))
