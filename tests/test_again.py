"""What is computed again is what was computed the first time, whatever happened to the modules in between."""

import copy
import gc
import itertools
import threading
import weakref
from contextlib import nullcontext
from types import SimpleNamespace

import pytest
import torch
from law_cases import BY_NAME, CASES, CROSS_CASES, as_one, inputs_for, model_of, run, weighted
from oracles import assert_close, randn
from refusals import unless_refused
from test_kernels import blocked
from torch import nn

from x_transformers import Attention, Decoder, TransformerWrapper
from x_transformers.core.modes import maps_apart
from x_transformers.core.recompute import GradAndCastMode, ModuleSnapshot
from x_transformers.features import ATTENTION, AttentionFeature
from x_transformers.features.scores import GumbelSoftmax
from x_transformers.flags import flag
from x_transformers.kernels import dense as attend

WAYS = ('blocks', 'layers')
# what computes with parameters in a block, or in a stage of layers of its own
QUICK = {
    'blocks': (
        'plain', 'attn_pre_talking_heads', 'attn_post_talking_heads', 'attn_talking_heads', 'attn_use_cope',
        'attn_pre_scale_post_talking_heads', 'attn_use_rel_proj_pos_bias', 'attn_head_learned_sink', 'rel_pos_bias',
        'dynamic_pos_bias', 'pos, T5', 'pos, dynamic bias', 'attn_gumbel_softmax', 'attn_data_dependent_alibi_per_row',
    ),
    'layers': (
        'plain', 'rel_pos_bias', 'pos, T5', 'num_residual_streams', 'use_adaptive_layernorm', 'integrate_layers',
        'gate_residual', 'attn_head_learned_sink', 'weight_tie_layers', 'add_value_residual', 'attn_gate_values',
        'prepend_mask',
    ),
}  # fmt: skip


OF_ATTENTION = ('attn_', 'rel_pos', 'dynamic', 'alibi', 'cross')


def cases_of(way):
    for case in (*CASES, *CROSS_CASES):
        if way == 'blocks' and case.flag and not case.flag.startswith(OF_ATTENTION):
            continue
        yield pytest.param(way, case, id=f'{way}-{case}', marks=() if str(case) in QUICK[way] else pytest.mark.nightly)


EVERY = [case for way in WAYS for case in cases_of(way)]
FEW = [case for case in EVERY if not case.marks]


def test_the_quick_cases_exist():
    for way, names in QUICK.items():
        assert set(names) <= set(BY_NAME), way


def computed_again(way, case):
    """A network, its inputs, and a context in which it computes again."""
    case = case.with_keywords(checkpoint_layers=True) if way == 'layers' else case
    unless_refused(case)
    net = copy.deepcopy(model_of(case))
    net.train(way == 'layers')
    return net, inputs_for(net, case), blocked(3) if way == 'blocks' else nullcontext()


def gradients_of(out, learned, **options):
    return torch.autograd.grad(weighted(out), learned, allow_unused=True, **options)


def same(found, wanted, names=None):
    names = range(len(wanted)) if names is None else names
    for name, a, b in zip(names, found, wanted, strict=True):
        assert (a is None) == (b is None), name
        if b is not None:
            assert_close(a, b, f'gradient of {name}')


def changed(net):
    """Other values for all parameters."""
    generator = torch.Generator().manual_seed(9)
    noise = {name: torch.randn(p.shape, generator=generator, dtype=p.dtype) for name, p in net.named_parameters()}
    return {name: (p.detach() + 0.3 * noise[name]).requires_grad_() for name, p in net.named_parameters()}


@pytest.mark.parametrize(('way', 'case'), EVERY)
def test_parameters_of_a_functional_call(way, case):
    """Gradients are those of a network that has these parameters, although the backward pass runs outside."""
    net, inputs, again = computed_again(way, case)
    other, parameters = copy.deepcopy(net), changed(net)
    with torch.no_grad():
        for name, parameter in other.named_parameters():
            parameter.copy_(parameters[name])
    torch.manual_seed(1)
    wanted = gradients_of(run(other, inputs), list(other.parameters()))
    with again:
        torch.manual_seed(1)
        out = as_one(net, torch.func.functional_call(net, parameters, (), inputs))
        same(gradients_of(out, list(parameters.values())), wanted, parameters)


@pytest.mark.parametrize(('way', 'case'), FEW)
def test_several_losses_at_once(way, case):
    net, inputs, again = computed_again(way, case)
    learned = list(net.parameters())
    with again:
        torch.manual_seed(1)
        out = run(net, inputs)
        upstream = randn(2, *out.shape)
        each = [torch.autograd.grad(out, learned, one, retain_graph=True, allow_unused=True) for one in upstream]
        found = torch.autograd.grad(out, learned, upstream, is_grads_batched=True, allow_unused=True)
    same(found, [None if one is None else torch.stack((one, other)) for one, other in zip(*each, strict=True)])


# its curves are copied, for maps
@pytest.mark.parametrize(('way', 'case'), [case for case in FEW if str(case.values[1]) != 'attn_use_rel_proj_pos_bias'])
def test_modules_compute_again_themselves(way, case, monkeypatch):
    """Nothing is copied where nothing has changed; with a graph, gradients are the same."""
    net, inputs, again = computed_again(way, case)
    learned = list(net.parameters())
    monkeypatch.setattr(ModuleSnapshot, 'copy_modules', None)
    torch.manual_seed(1)
    wanted = gradients_of(run(net, inputs), learned)
    with again:
        torch.manual_seed(1)
        same(gradients_of(run(net, inputs), learned, create_graph=True), wanted)


@pytest.mark.parametrize(('way', 'case'), FEW)
def test_changes_before_the_backward_pass(way, case):
    """Another mode, another attribute, another parameter in place of one: the first pass counts."""
    net, inputs, again = computed_again(way, case)
    net.train()
    learned = list(net.parameters())
    with again:
        torch.manual_seed(1)
        wanted = gradients_of(run(net, inputs), learned)
        torch.manual_seed(1)
        out = run(net, inputs)
        net.eval()
        for module in net.modules():
            for name, parameter in module._parameters.items():
                module._parameters[name] = None if parameter is None else nn.Parameter(parameter.detach() * 2)
            gumbel = module.features.find(GumbelSoftmax) if hasattr(module, 'features') else None
            if gumbel is not None:
                gumbel.gumbel_softmax_temp = 7.0
        same(gradients_of(out, learned), wanted)


@pytest.mark.parametrize('way', WAYS)
@pytest.mark.parametrize('kind', ['parameter', 'mask'])
def test_changes_in_place_are_refused(way, kind):
    """As torch refuses them where a tensor was saved."""
    net, _, again = computed_again(way, BY_NAME['attn_pre_talking_heads'])
    mixer = net.attn_layers.layers[0][1].attend.pre_softmax_talking_heads.weight
    mask = torch.ones(7, 7, dtype=torch.bool)
    with again:
        out = net.attn_layers(randn(2, 7, 16), attn_mask=mask)
        with torch.no_grad():
            mixer.mul_(2) if kind == 'parameter' else mask[:, -2:].zero_()
        words = 'pre_softmax_talking_heads.weight. was changed in place' if kind == 'parameter' else 'inplace operation'
        with pytest.raises(RuntimeError, match=words):
            weighted(out).backward()


def test_a_step_in_the_backward_pass():
    """An optimiser may change each parameter as soon as its gradient is complete."""

    @torch.no_grad()
    def step(parameter):
        parameter.sub_(parameter.grad)

    found = []
    for length in (False, True):
        torch.manual_seed(0)
        net = Decoder(dim=16, depth=3, heads=2, attn_dim_head=8, checkpoint_layers=length, rel_pos_bias=True).double()
        for parameter in net.parameters():
            parameter.register_post_accumulate_grad_hook(step)
        net(randn(2, 5, 16)).sin().sum().backward()
        found.append([p.detach() for p in net.parameters()])
    same(*found)


class Counting(nn.Module):
    """Counts how often it ran, in two ways, and keeps a running mean."""

    def __init__(self):
        super().__init__()
        self.linear, self.runs = nn.Linear(16, 16).double(), 0
        self.register_buffer('count', torch.tensor(0))

    def forward(self, x, **_):
        self.runs += 1
        self.count += 1
        return self.linear(x) * (2.0 if self.runs % 2 else 3.0)


def test_what_modules_change_themselves():
    """It is no change from outside; and the second run begins as the first did."""
    torch.manual_seed(0)
    found = []
    for length in (False, True):
        torch.manual_seed(0)
        net = Decoder(dim=16, depth=1, heads=2, attn_dim_head=8, checkpoint_layers=length).double()
        net.layers[1][1] = branch = Counting()
        x = randn(2, 5, 16)
        outs = [net(x), net(x)]
        assert branch.runs == 2
        found.append([grad for out in outs for grad in gradients_of(out, list(net.parameters()))])
        assert branch.runs == 2
    same(*found)


class Averaging(nn.Module):
    """Keeps an average of what it reads."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(16, 16)
        self.register_buffer('average', torch.zeros(16))

    def forward(self, x, **_):
        with torch.no_grad():
            self.average.lerp_(x.flatten(0, 1).mean(dim=0), 0.1)
        return self.linear(x)


def test_averages_that_modules_keep():
    """They change in place where a layer runs, and that is no change from outside."""
    found = []
    for length in (False, True):
        torch.manual_seed(0)
        net = Decoder(dim=16, depth=1, heads=2, attn_dim_head=8, checkpoint_layers=length)
        net.layers[1][1] = Averaging()
        net.double()
        found.append(gradients_of(net(randn(2, 5, 16)), list(net.parameters())))
    same(*found)


@pytest.mark.parametrize('way', WAYS)
def test_a_feature_that_changes_before_the_backward_pass(way):
    net, inputs, again = computed_again(way, BY_NAME['attn_softclamp_logits'])
    learned = list(net.parameters())
    with again:
        wanted = gradients_of(run(net, inputs), learned)
        out = run(net, inputs)
        for module in net.modules():
            for feature in module.features.active if hasattr(module, 'features') else ():
                if 'logit_softclamp_value' in feature.flags:
                    feature.logit_softclamp_value = 0.3
        same(gradients_of(out, learned), wanted)
        assert not torch.allclose(run(net, inputs), out)


class Table(AttentionFeature):
    """Logits times a number of a module that is kept in a list."""

    table = flag(False, 'scale the logits')
    row_wise = True

    def setup(self, owner):
        self.gain = nn.Parameter(torch.ones(()))
        owner.lookup = [nn.Linear(1, 1)]

    def logits(self, sim, call):
        return sim * self.gain + self.owner.lookup[0].bias


@pytest.mark.parametrize('way', WAYS)
def test_features_of_the_user(way):
    torch.manual_seed(0)
    options = dict(features=(*ATTENTION, Table), attn_table=True, checkpoint_layers=way == 'layers')
    net = Decoder(dim=16, depth=1, heads=2, attn_dim_head=8, **options).double()
    attention = net.layers[0][1]
    attention.lookup[0].double()
    x, parameters = randn(2, 9, 16), changed(net)
    other = copy.deepcopy(net)
    with torch.no_grad():
        for name, parameter in other.named_parameters():
            parameter.copy_(parameters[name])
    wanted = gradients_of(other(x), list(other.parameters()))
    with blocked(2) if way == 'blocks' else nullcontext():
        found = gradients_of(torch.func.functional_call(net, parameters, (x,)), list(parameters.values()))
    same(found, wanted, parameters)


def test_a_change_in_place_of_a_module_in_a_list_is_refused():
    net = Decoder(dim=16, depth=1, heads=2, attn_dim_head=8, features=(*ATTENTION, Table), attn_table=True)
    with blocked(2):
        out = net(randn(2, 9, 16).float())
    with torch.no_grad():
        net.layers[0][1].lookup[0].bias.add_(1)
    with pytest.raises(RuntimeError, match=r'lookup\.bias` was changed in place'):
        weighted(out).backward()


def test_autocast_of_the_backward_pass():
    """Blocks in full precision stay so, wherever the backward pass runs."""
    torch.manual_seed(0)
    layer = Attention(dim=8, heads=1, dim_head=8, max_attend_past=3, causal=True, project_out=False)
    layer.to_q = layer.to_k = layer.to_v = nn.Identity()
    x, found = randn(2, 9, 8).float().requires_grad_(), []
    for enabled in (False, True):
        with blocked(2):
            out = weighted(layer(x))
        with torch.autocast('cpu', torch.bfloat16, enabled=enabled):
            found.append(torch.autograd.grad(out, x))
    assert_close(found[1][0], found[0][0], tolerance=1e-6)


def test_threads_with_parameters_of_their_own():
    """Backward passes with other parameters put nothing into the modules that other threads compute with."""
    net, inputs, _ = computed_again('layers', BY_NAME['attn_pre_talking_heads'])
    parameters, wanted, stop, failed = changed(net), run(net.eval(), inputs), threading.Event(), []

    def evaluate():
        while not stop.is_set():
            with torch.no_grad():
                if not torch.equal(net(**inputs), wanted):
                    failed.append(True)

    net.train()
    loss = weighted(torch.func.functional_call(net, parameters, (), inputs))
    thread = threading.Thread(target=evaluate)
    thread.start()
    for _ in range(5):
        torch.autograd.grad(loss, list(parameters.values()), allow_unused=True, retain_graph=True)
    stop.set()
    thread.join()
    assert not failed


def test_nothing_is_kept_longer_than_the_graph():
    net, inputs, again = computed_again('blocks', BY_NAME['attn_pre_talking_heads'])
    with again:
        weighted(run(net, inputs)).backward()
    gone = weakref.ref(net.attn_layers.layers[0][1])
    model_of.cache_clear()
    del net, inputs, again
    gc.collect()
    assert gone() is None


def test_transforms_run_layers_once():
    """Inside torch.func nothing can be saved to run again."""
    torch.manual_seed(0)
    stack = Decoder(dim=16, depth=2, heads=2, attn_dim_head=8, checkpoint_layers=True, attn_flash=False).double()
    net = TransformerWrapper(num_tokens=9, max_seq_len=6, attn_layers=stack).double()
    ids, parameters = torch.arange(6)[None], {name: p.detach() for name, p in net.named_parameters()}
    loss = lambda p: weighted(torch.func.functional_call(net, p, (ids,)))  # noqa: E731
    found = torch.func.grad(loss)(parameters)
    wanted = torch.autograd.grad(weighted(net(ids)), list(net.parameters()))
    same([found[name] for name in parameters], wanted, parameters)


# maps that are read later


MAPPED = (
    'plain', 'attn_pre_talking_heads', 'attn_talking_heads', 'attn_use_cope', 'attn_use_rel_proj_pos_bias',
    'attn_head_learned_sink', 'rel_pos_bias', 'pos, T5', 'pos, dynamic bias', 'attn_gumbel_softmax',
    'attn_softclamp_logits', 'attn_l2_distance', 'attn_data_dependent_alibi',
)  # fmt: skip
NAMES = ('qk_similarities', 'pre_softmax_attn', 'post_softmax_attn')


def maps_of(trace):
    return [getattr(each, name) for each in trace.attn_intermediates for name in NAMES]


def step(net):
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.add_(0.5)


def replace(net):
    for module in net.modules():
        for name, parameter in module._parameters.items():
            module._parameters[name] = None if parameter is None else nn.Parameter(parameter.detach() + 0.5)


def edit(net):
    for parameter in net.parameters():
        parameter.data.add_(0.5)


CHANGES = {'a step': step, 'others': replace, 'data': edit, 'a cast': lambda net: net.float(), 'a mode': nn.Module.eval}


def maps_and_changes():
    """A change to the whole or to blocks, by turns; both by night."""
    for (row, name), (column, change), height in itertools.product(enumerate(MAPPED), enumerate(CHANGES), (None, 3)):
        if not (height and name.startswith('pos,') and change == 'data'):  # as torch's own graphs do not notice
            now = (row + column) % 2 == bool(height) or (name.startswith('pos,') and change in ('a step', 'data'))
            yield pytest.param(name, height, change, marks=() if now else pytest.mark.nightly)


@pytest.mark.parametrize('name, height, change', [*maps_and_changes()])
def test_maps_are_those_of_the_call(name, height, change):
    net = copy.deepcopy(model_of(BY_NAME[name])).train()
    inputs = inputs_for(net, BY_NAME[name])
    with blocked(height) if height else nullcontext():
        torch.manual_seed(1)
        wanted = maps_of(run(net, inputs, return_intermediates=True)[1])
        torch.manual_seed(1)
        _, trace = run(net, inputs, return_intermediates=True)
        CHANGES[change](net)
        if height and name.startswith('pos,') and change in ('a step', 'a cast'):  # a bias that is made in blocks
            with pytest.raises(RuntimeError, match='changed in place, or cast or moved, after the call'):
                maps_of(trace)
        else:
            assert len(wanted) >= len(NAMES)
            for found, map in zip(maps_of(trace), wanted, strict=True):
                assert_close(found, map, 'map')


def test_maps_have_the_gradients_of_the_call():
    """Also where they are first read without gradients; and none, if the call had none."""
    case = BY_NAME['attn_head_learned_sink']
    net = copy.deepcopy(model_of(case))
    inputs, learned = inputs_for(net, case), list(net.parameters())
    wanted = gradients_of(maps_of(run(net, inputs, return_intermediates=True)[1])[2], learned)
    _, trace = run(net, inputs, return_intermediates=True)
    with torch.no_grad():
        maps = maps_of(trace)
    same(gradients_of(maps[2], learned), wanted)
    with torch.no_grad():
        _, trace = run(net, inputs, return_intermediates=True)
    assert not any(map.requires_grad for map in maps_of(trace))
    with torch.inference_mode():
        _, trace = run(net, inputs, return_intermediates=True)
    assert torch.equal(maps_of(trace)[2], maps[2])


def as_float(t):
    return t.float() if torch.is_tensor(t) and t.is_floating_point() else t


@pytest.mark.parametrize('name', MAPPED)
def test_maps_in_the_precision_of_the_call(name):
    net = copy.deepcopy(model_of(BY_NAME[name])).float()
    case = BY_NAME[name]
    inputs = {
        n: t.float() if torch.is_tensor(t) and t.is_floating_point() else t for n, t in inputs_for(net, case).items()
    }
    with torch.autocast('cpu', torch.bfloat16):
        wanted = maps_of(run(net, inputs, return_intermediates=True)[1])
        _, trace = run(net, inputs, return_intermediates=True)
    for found, map in zip(maps_of(trace), wanted, strict=True):
        assert found.dtype == map.dtype and torch.equal(found, map)
    _, trace = run(net, inputs, return_intermediates=True)
    wanted = maps_of(run(net, inputs, return_intermediates=True)[1])
    with torch.autocast('cpu', torch.bfloat16):
        for found, map in zip(maps_of(trace), wanted, strict=True):
            assert found.dtype == map.dtype and torch.equal(found, map)


def test_maps_of_large_parameters(monkeypatch):
    """They are not copied: whoever changes them in place is told which."""
    monkeypatch.setattr(attend, 'COPIED', 10)
    net = copy.deepcopy(model_of(BY_NAME['attn_pre_talking_heads']))
    for change, words in ((step, 'pre_softmax_talking_heads.weight. was changed in place'), (replace, None)):
        with maps_apart():
            _, trace = run(net, inputs_for(net, BY_NAME['attn_pre_talking_heads']), return_intermediates=True)
        change(net)
        if words:
            with pytest.raises(RuntimeError, match=words):
                maps_of(trace)
        else:
            maps_of(trace)


def test_maps_of_a_mask_that_was_changed():
    mask = torch.ones(7, 7, dtype=torch.bool)
    given = dict(attn_mask=mask, return_intermediates=True, keep_maps=False)
    _, left = Attention(dim=8, heads=2)(torch.randn(2, 7, 8), **given)
    mask[:, 3:] = False
    with pytest.raises(RuntimeError, match='input of the call was changed in place'):
        maps_of(SimpleNamespace(attn_intermediates=[left]))


def test_copies_hold_maps_without_a_graph():
    net = copy.deepcopy(model_of(BY_NAME['attn_head_learned_sink']))
    _, trace = run(net, inputs_for(net, BY_NAME['attn_head_learned_sink']), return_intermediates=True)
    left = trace.attn_intermediates[0]
    state = left.__getstate__()
    assert not any(map.requires_grad for map in state['maps']) and left.post_softmax_attn.requires_grad


def test_threads_that_compute_in_the_same_surroundings():
    """Each comes out in the mode in which it came in, whichever leaves first."""
    with torch.inference_mode():
        kept = GradAndCastMode('cpu')
    inside, left, modes = threading.Event(), threading.Event(), {}

    def second():
        with torch.no_grad():
            with kept.restore():
                inside.set()
                left.wait(10)
            modes['second'] = torch.is_grad_enabled(), torch.is_inference_mode_enabled()

    thread = threading.Thread(target=second)
    with kept.restore():
        thread.start()
        assert inside.wait(10) and torch.is_inference_mode_enabled()
    modes['first'] = torch.is_grad_enabled(), torch.is_inference_mode_enabled()
    left.set()
    thread.join()
    assert modes == {'first': (True, False), 'second': (False, False)}
