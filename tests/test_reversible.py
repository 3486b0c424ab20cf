"""Reversible layers: the numbers and gradients of the same layers in the ordinary way, in memory constant in depth."""

import copy

import pytest
import torch
from law_cases import (
    BY_NAME,
    CASES,
    CROSS_CASES,
    Case,
    as_one,
    compiled_step_law,
    inputs_for,
    model_of,
    randomise,
    refused,
    weighted,
)
from oracles import assert_close, randn
from refusals import unless_refused

from x_transformers import AutoregressiveWrapper, Decoder, Encoder, TransformerWrapper
from x_transformers.features import AttentionFeature, StackFeature, flag
from x_transformers.features.recompute import Reversible
from x_transformers.flags import ConfigError

DROPOUTS = dict(ff_dropout=0.3, attn_dropout=0.2)
SIZES = dict(dim=16, heads=2, attn_dim_head=8, verbose=False)


@pytest.fixture
def ordinary(monkeypatch):
    """Runs a function with and without the trick, with the same noise."""

    def both(compute):
        found = []
        for keeps in (True, False):
            with monkeypatch.context() as patched:
                if keeps:
                    patched.setattr(Reversible, 'saves', lambda *_: False)
                torch.manual_seed(1)
                found.append(compute())
        return found

    return both


def same(wanted, found):
    for name, grad in wanted.items():
        assert (found[name] is None) == (grad is None), name
        if grad is not None:
            assert_close(found[name], grad, f'gradient of {name}')


def training_step(case):
    """Output and gradients of a training step, of parameters and of what the caller gives."""
    net = copy.deepcopy(model_of(case)).train()
    inputs = inputs_for(net, case)
    torch.manual_seed(1)
    inputs = {n: t.clone().requires_grad_() if is_learned(t) else t for n, t in inputs.items()}
    out = net(**inputs)
    out = as_one(net, out)
    loss = weighted(out)
    tensors = {**dict(net.named_parameters()), **{n: t for n, t in inputs.items() if is_learned(t)}}
    return out, dict(zip(tensors, torch.autograd.grad(loss, [*tensors.values()], allow_unused=True), strict=True))


def is_learned(t):
    return torch.is_tensor(t) and t.is_floating_point()


QUICK = {'plain', 'cross_attend', 'context_mask', 'rotary_pos_emb', 'rel_pos_bias', 'dynamic_pos_bias', 'shift_tokens'}
QUICK |= {'macaron', 'layer_dropout', 'reinject_input', 'use_adaptive_layernorm', 'deep_embeds_and_ids', 'attn_bias'}
SOME = [
    pytest.param(case, marks=() if case.name in QUICK else pytest.mark.nightly)
    for case in (*CASES, *CROSS_CASES)
    if case.flag != 'reversible'
]


@pytest.mark.parametrize('case', SOME, ids=str)
def test_the_same_step(case, ordinary):
    """Gradients of parameters, contexts, conditions and biases too, with dropout, whatever else is on."""
    case = case.with_keywords(reversible=True)
    unless_refused(case)
    dropped = case.with_keywords(**{name: rate for name, rate in DROPOUTS.items() if name not in case.stack})
    case = case if refused(dropped) else dropped
    (out, wanted), (other, found) = ordinary(lambda: training_step(case))
    assert_close(weighted(other), weighted(out), 'output')
    same(wanted, found)


def by_formula(net, x, context):
    """Layer by layer: attention reads the second stream and writes the first, a feedforward the other way round."""
    first, second = x, x
    for layer in net.layers:
        (before, _, _), branch, _ = layer
        if layer.kind == 'f':
            second = second + branch(before(first))
        else:
            first = first + branch(before(second), **(dict(context=context) if layer.kind == 'c' else {}))
    if net.final_norm.gamma.shape == (16,):
        return net.final_norm((first + second) / 2)
    return sum(net.final_norm(torch.cat((first, second), dim=-1)).chunk(2, dim=-1)) / 2


BOTH = dict(reversible_merge='concat_norm')


@pytest.mark.parametrize(
    'flags', [{}, dict(macaron=True), dict(cross_attend=True, cross_attn_dim_context=10, **BOTH)], ids=str
)
def test_the_formula(flags):
    net = randomise(Encoder(**SIZES, depth=3, reversible=True, **flags).double()).train()
    x, context = randn(2, 5, 16).requires_grad_(), randn(2, 4, 10).requires_grad_()
    leaves = [x, context, *net.parameters()]
    out, wanted = net(x, context=context if 'cross_attend' in flags else None), by_formula(net, x, context)
    assert_close(out, wanted, 'output')
    found = (torch.autograd.grad(t.sin().sum(), leaves, allow_unused=True) for t in (out, wanted))
    same(*(dict(enumerate(grads)) for grads in found))


def test_a_norm_of_both_streams():
    """It has gains for each feature of each, is that of one where they are the same, and is kept by a config."""
    net = TransformerWrapper(
        num_tokens=9, max_seq_len=8, attn_layers=Decoder(**SIZES, depth=1, reversible=True, use_rmsnorm=True, **BOTH)
    )
    norm, x = net.attn_layers.final_norm, randn(2, 3, 16).float()
    assert norm.g.shape == (32,)
    one = Decoder(**SIZES, depth=1, use_rmsnorm=True).final_norm
    for half in norm(torch.cat((x, x), dim=-1)).chunk(2, dim=-1):
        assert_close(half, one(x), tolerance=1e-6)
    other = TransformerWrapper.from_config(net.config)
    assert other.attn_layers.final_norm.g.shape == (32,)
    out, trace = net.attn_layers(x, return_hiddens=True)
    assert all(h.shape == x.shape for h in trace.layer_hiddens) and out.shape == x.shape


def saved_bytes(depth, **flags):
    """What a training step keeps for the backward pass besides parameters, in units of the stream."""
    torch.manual_seed(0)
    net = Decoder(**SIZES, depth=depth, **flags).train()
    x, sizes = torch.randn(2, 64, 16), {}
    own = {p.untyped_storage().data_ptr() for p in net.parameters()}

    def note(t):
        storage = t.untyped_storage()
        if storage.data_ptr() not in own:
            sizes[storage.data_ptr()] = storage  # held, so that no other takes its place
        return t

    with torch.autograd.graph.saved_tensors_hooks(note, lambda t: t):
        out = net(x)
    del out
    return sum(storage.nbytes() for storage in sizes.values()) / x.nbytes


@pytest.mark.parametrize('flags', [{}, dict(rotary_pos_emb=True, **DROPOUTS), dict(rel_pos_bias=True)], ids=str)
def test_memory_is_constant_in_depth(flags):
    shallow, deep = (saved_bytes(depth, reversible=True, **flags) for depth in (4, 12))
    assert deep == shallow < 12 and saved_bytes(12, **flags) > 150


class Penalty(AttentionFeature):
    penalised = flag(False, 'a loss of each layer')

    def layer_output(self, out, call):
        if self.penalised:
            call.add_loss('penalty', out.square().mean())
        return out


def language_model(**flags):
    torch.manual_seed(0)
    stack = Decoder(**SIZES, depth=3, reversible=True, features=(Penalty,), attn_penalised=True, **flags)
    return AutoregressiveWrapper(TransformerWrapper(num_tokens=30, max_seq_len=12, attn_layers=stack)).double().train()


def test_losses_of_layers_count_once(ordinary):
    model, ids = language_model(attn_dropout=0.1), torch.randint(0, 30, (2, 12))

    def step():
        loss = model(ids)
        grads = torch.autograd.grad(loss, [*model.parameters()], allow_unused=True)
        return loss, dict(zip(dict(model.named_parameters()), grads, strict=True))

    (wanted, grads), (found, others) = ordinary(step)
    assert_close(found, wanted, 'loss')
    same(grads, others)
    without = AutoregressiveWrapper(copy.deepcopy(model.net)).train()
    for layer in without.net.attn_layers.layers:
        if layer.kind == 'a':
            layer[1].features.find(Penalty).penalised = False
    torch.manual_seed(1)
    assert without(ids) < wanted - 0.01


def test_other_parameters_and_autocast(ordinary):
    """The backward pass computes with what the forward pass had: parameters of a call, the mode, the dtype."""
    net = randomise(Decoder(**SIZES, depth=2, reversible=True, ff_dropout=0.2).double()).train()
    given = {n: (p * 1.5).detach().requires_grad_() for n, p in net.named_parameters()}
    x = randn(2, 5, 16)

    def called():
        out = torch.func.functional_call(net, given, (x,))
        net.eval()
        found = dict(zip(given, torch.autograd.grad(out.sin().sum(), [*given.values()]), strict=True))
        net.train()
        return found

    same(*ordinary(called))
    single = copy.deepcopy(net).float()

    def cast():
        with torch.autocast('cpu', torch.bfloat16):
            out = single(x.float())
        return torch.cat([g.flatten() for g in torch.autograd.grad(out.sin().sum(), [*single.parameters()])])

    wanted, found = ordinary(cast)
    assert torch.nn.functional.cosine_similarity(wanted, found, dim=0) > 0.999


@pytest.mark.costly
def test_streams_are_found_again(ordinary):
    """Over 64 blocks, in single precision, and in half: gradients of all against those of doubles."""
    weights = torch.randn(1, 7, 16, generator=torch.Generator().manual_seed(3))
    for dtype, bound in ((torch.float32, 1e-3), (torch.bfloat16, 0.3)):
        torch.manual_seed(0)
        net = Decoder(**SIZES, depth=64, reversible=True).to(dtype).train()
        exact = copy.deepcopy(net).double()
        x = torch.randn(1, 7, 16).to(dtype)

        def grads(net, x):
            x = x.clone().requires_grad_()
            return torch.autograd.grad((net(x) * weights.to(x.dtype)).sum(), [x, *net.parameters()])

        plain, found = ordinary(lambda net=net, x=x, grads=grads: grads(net, x))
        true, _ = ordinary(lambda net=exact, x=x, grads=grads: grads(net, x.double()))

        def error(some, true=true):
            return max(((one - other).norm() / other.norm()).item() for one, other in zip(some, true, strict=True))

        assert 0 < error(found) < bound and error(found) < 4 * error(plain)


def test_several_losses_and_twice():
    net = Encoder(**SIZES, depth=2, reversible=True, ff_dropout=0.2).double().train()
    x = randn(2, 3, 16).requires_grad_()
    out = net(x)
    rows = torch.eye(6, dtype=torch.float64).unflatten(-1, (2, 3)).unsqueeze(-1).expand(-1, -1, -1, 16)
    (at_once,) = torch.autograd.grad(out, x, rows, is_grads_batched=True, retain_graph=True)
    one_by_one = [torch.autograd.grad(out, x, row, retain_graph=True)[0] for row in rows]
    assert_close(at_once, torch.stack(one_by_one), 'gradients of several losses')
    (grad,) = torch.autograd.grad(net.eval()(x).sin().sum(), x, create_graph=True)
    grad.square().sum().backward()  # in evaluation there is a graph
    with pytest.raises(RuntimeError, match='`reversible` cannot be combined with gradients of gradients'):
        torch.autograd.grad(net.train()(x).sin().sum(), x, create_graph=True)


def test_who_looks_gets_the_ordinary_way():
    """Hooks on layers, and hiddens that are asked for; the parts of layers may have hooks in any way."""
    net = Encoder(**SIZES, depth=2, reversible=True).train()
    x, seen = torch.randn(2, 3, 16), []
    branch = net.layers[1][1].register_forward_hook(lambda *_: seen.append('branch'))
    net(x).sum().backward()
    assert seen == ['branch'] * 2  # the backward pass computes it again
    branch.remove()
    hook = net.layers[1].register_forward_hook(lambda module, args, out: out * 2)
    found = [torch.autograd.grad(net.train(on)(x).exp().sum(), [*net.parameters()]) for on in (False, True)]
    for grad, other in zip(*found, strict=True):
        assert_close(grad, other, 'gradient', 1e-5)
    hook.remove()
    weight = next(net.layers[1].parameters())
    (alone,) = torch.autograd.grad(net.train()(x).exp().sum(), weight)
    hook = weight.register_hook(lambda grad: grad * 2)  # once, not layer by layer
    net(x).exp().sum().backward()
    assert_close(weight.grad, 2 * alone, 'gradient', 1e-5)
    hook.remove()
    out, trace = net(x, return_hiddens=True)
    assert len(trace.layer_hiddens) == 5 and all(h.shape == x.shape for h in trace.layer_hiddens)
    assert_close(out, net(x), 'output', 1e-6)


class Counting(StackFeature):
    """Notes something from layer to layer."""

    counts = flag(False, 'count layers')

    def branch_input(self, x, layer, call):
        call.ctx(self).layers = getattr(call.ctx(self), 'layers', 0) + 1
        return x


@pytest.mark.parametrize(
    ('flags', 'message'),
    [
        (dict(pre_norm=False), '`reversible` needs `pre_norm`'),
        (
            dict(pre_norm_has_final_norm=False, **BOTH),
            "`reversible_merge='concat_norm'` needs `pre_norm_has_final_norm`",
        ),
        (dict(custom_layers=('a', 'a')), '`reversible` needs attention and feedforwards'),
        (dict(scale_residual=True), '`reversible` cannot be combined with `scale_residual`, got True'),
        (
            dict(residual_fn_kwargs=dict(scale_residual_constant=2.0)),
            'cannot be combined with `scale_residual_constant`',
        ),
        (dict(gate_residual=True), '`gate_residual` and `reversible` both choose the residual'),
        (dict(checkpoint_layers=True), '`reversible` cannot be combined with `checkpoint_layers`'),
        (dict(add_value_residual=True), '`reversible` cannot be combined with `add_value_residual`'),
    ],
    ids=str,
)
def test_refusals(flags, message):
    with pytest.raises(ConfigError, match=message):
        Decoder(**SIZES, depth=1, reversible=True, **flags)


def test_refusals_of_calls():
    net = Decoder(**SIZES, depth=2, reversible=True)
    with pytest.raises(ValueError, match='`transform_block_inputs` cannot be combined with `reversible`'):
        net(torch.randn(1, 3, 16), transform_block_inputs=lambda block, x: x)
    net = Decoder(**SIZES, depth=2, reversible=True, features=(Counting,), counts=True)
    with pytest.raises(ValueError, match='`reversible` cannot be combined with a feature that notes something'):
        net(torch.randn(1, 3, 16))


@pytest.mark.slow
@pytest.mark.parametrize('name', ['plain', 'cross_attend=True', 'rel_pos_bias'])
def test_compiled_in_one_graph(name):
    """A compiled graph computes the same; what it keeps is the compiler's to say."""
    compiled_step_law(BY_NAME[name].with_keywords(reversible=True))


@pytest.mark.parametrize(
    'flags',
    [dict(weight_tie_layers=True), dict(layer_dropout=0.4, shift_tokens=1), dict(sandwich_norm=True)],
    ids=lambda flags: ' '.join(flags),
)
def test_deeper_stacks(flags, ordinary):
    case = Case('deep', stack=dict(depth=5, reversible=True, **DROPOUTS, **flags))
    (_, wanted), (_, found) = ordinary(lambda: training_step(case))
    same(wanted, found)


def test_gradients_of_memories(ordinary):
    net = randomise(Decoder(**SIZES, depth=2, reversible=True).double()).train()
    x, mems = randn(2, 5, 16), [randn(2, 3, 16).requires_grad_() for _ in range(2)]
    wanted, found = ordinary(lambda: torch.autograd.grad(net(x, mems=mems).sin().sum(), mems))
    assert wanted[0].abs().max() > 1e-6
    same(dict(enumerate(wanted)), dict(enumerate(found)))


@pytest.mark.slow
def test_distributed(tmp_path):
    """The gradients that are exchanged are those of all parameters, each once."""
    torch.distributed.init_process_group('gloo', init_method=f'file://{tmp_path}/store', rank=0, world_size=1)
    try:
        net = randomise(Decoder(**SIZES, depth=3, reversible=True, **BOTH)).train()
        alone, x, exchanged = copy.deepcopy(net), torch.randn(2, 5, 16), []

        def doubled(state, bucket):
            exchanged.append(len(bucket.gradients()))
            future = torch.futures.Future()
            future.set_result(bucket.buffer() * 2)
            return future

        replica = torch.nn.parallel.DistributedDataParallel(net)
        replica.register_comm_hook(None, doubled)
        replica(x).sin().sum().backward()
        alone(x).sin().sum().backward()
        assert sum(exchanged) == len([*net.parameters()])
        for one, other in zip(net.parameters(), alone.parameters(), strict=True):
            assert_close(one.grad, 2 * other.grad, tolerance=1e-6)
    finally:
        torch.distributed.destroy_process_group()


@pytest.mark.slow
def test_the_same_losses_while_it_learns(ordinary):
    """Copying a sequence, in double precision: the same curve with and without the trick."""

    def curve():
        torch.manual_seed(0)
        stack = Decoder(dim=32, heads=2, attn_dim_head=16, depth=2, reversible=True, ff_dropout=0.1, verbose=False)
        model = AutoregressiveWrapper(TransformerWrapper(num_tokens=9, max_seq_len=17, attn_layers=stack)).double()
        optimiser, losses = torch.optim.Adam(model.parameters(), lr=2e-3), []
        for _ in range(60):
            half = torch.randint(0, 8, (16, 8))
            loss = model(torch.cat((half, torch.full((16, 1), 8), half), dim=-1))
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            losses.append(loss.detach())
        return torch.stack(losses)

    wanted, found = ordinary(curve)
    assert wanted[-1] < wanted[0] - 0.3
    assert_close(found, wanted, tolerance=1e-9)
