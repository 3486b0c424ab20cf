"""The decode step stands for the ordinary way, whatever users do: over classes, methods, attributes and stages.

A plain model decodes, is changed, and decodes again; then the same in the ordinary way. Both give the same, errors
included.
The cases are not written down: every public method of every class in the model, every attribute that is a number, and
every stage of every level is one.
"""

import copy
import functools
import inspect

import pytest
import torch
from oracles import assert_close, randomised
from torch import nn
from torch.utils._pytree import tree_map_only

from x_transformers import (
    AutoregressiveWrapper,
    Decoder,
    TransformerWrapper,
    attend,
    cache,
    x_transformers as core,
)
from x_transformers.core import calls, model_calls
from x_transformers.core.intermediates import Intermediates
from x_transformers.fast import untouched
from x_transformers.fast.plain_step import PlainStep
from x_transformers.fast.untouched import CALLED, LAZY, WRITTEN, Code, Private
from x_transformers.features import derived
from x_transformers.features.catalogue import ATTENTION, FEEDFORWARD, MODEL, STACK
from x_transformers.features.embeddings import TokenEmbedding
from x_transformers.flags import Feature, Features
from x_transformers.generation.engine import Reader
from x_transformers.kernels import dense

CATALOGUES = {'attention': ATTENTION, 'feedforward': FEEDFORWARD, 'stack': STACK, 'model': MODEL}
FLAGS = {
    'default': {},
    'rotary': dict(rotary_pos_emb=True),
    'others': dict(
        depth=2, parallel_block='shared', use_rmsnorm=True, norm_eps=1e-3, attn_qk_head_norm='rms', attn_qkv_bias=True,
        attn_softmax_scale=0.4, ff_activation='quick_gelu', rotary_pos_emb=True,
        rotary_layers=(True, dict(theta=50.0)),
        wrapper=dict(
            emb_scale=2.0, post_emb_norm=True, post_emb_norm_bias=True, emb_dropout=0.1, logits_softclamp=2.0,
            logits_scale=0.5, head_transform={},
        ),
    ),
}  # fmt: skip


def model(wrapper=None, **flags):
    torch.manual_seed(0)
    stack = Decoder(**{'dim': 8, 'depth': 1, 'heads': 2, 'attn_dim_head': 4, 'verbose': False, **flags})
    own = dict(features=flags.get('features'), **(wrapper or {}))
    net = TransformerWrapper(num_tokens=7, max_seq_len=16, attn_layers=stack, **own)
    return randomised(net.double()).eval()


@functools.cache
def made(flags):
    return model(**FLAGS[flags])


def ids(*shape):
    return torch.randint(0, 7, shape, generator=torch.Generator().manual_seed(1))


@torch.no_grad()
def passed(net):
    """Logits of a pass."""
    return net(ids(2, 5))


@torch.no_grad()
def decoded(net):
    """Logits of two tokens read one by one, after a prompt."""
    reader = Reader(net, {}, brief=True)
    return torch.cat([reader.read(ids(2, 6)[:, :length]) for length in (4, 5, 6)])


def slowly(run, net):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Reader, 'takes_plain_step', lambda *_: False)
        return run(net)


def outcome(run, net):
    """What a run gives, or the kind of error that it ends in."""
    try:
        return run(net)
    except Exception as error:  # what was changed may well be an error: then it must be the same one
        return type(error)


def assert_counts(net, change, copied=True):
    """A change between two runs acts as it does in the ordinary way. Returns whether it did anything."""
    acted = False
    for run in (decoded,):
        own = copy.deepcopy(net) if copied else net
        before = run(own)
        change(own)
        after, wanted = outcome(run, own), outcome(functools.partial(slowly, run), own)
        if torch.is_tensor(wanted):
            assert torch.is_tensor(after), after
            assert_close(after, wanted)
            acted = acted or wanted.shape != before.shape or not torch.allclose(wanted, before)
        else:
            assert after == wanted
            acted = True
    return acted


def test_the_model_takes_the_step():
    assert all(PlainStep.of(made(flags), {}) is not None for flags in FLAGS)


def doubled(function):
    """The same, with other numbers coming out: not just a factor, which norms take off again."""

    @functools.wraps(function)
    def changed(*args, **kwargs):
        out = function(*args, **kwargs)
        return tree_map_only(torch.Tensor, other, out) if isinstance(out, (torch.Tensor, tuple, list, dict)) else out

    def other(t):
        return t + 1.5 * t.roll(1) if t.is_floating_point() else t

    return changed


def parts_of(net):
    """Modules of a model, and the features that act in it, by names that tell where they are."""
    for name, module in net.named_modules():
        yield name or 'model', module
        features = vars(module).get('features')
        for feature in features.acting({'rotary_pos_emb': True}).active if isinstance(features, Features) else ():
            yield f'{name}:{type(feature).__name__}', feature


def methods_of(kind):
    """Public functions of a class that stand in the package, or in the few classes of torch that are written out."""
    for base in kind.__mro__:
        if base in WRITTEN:
            for name, value in vars(base).items():
                if inspect.isfunction(value) and (not name.startswith('_') or name == '__call__'):
                    yield base, name


def part_named(net, wanted):
    return next(part for name, part in parts_of(net) if name == wanted)


OWN = sorted({(flags, name, method) for flags in FLAGS for name, part in parts_of(made(flags))
              for _, method in methods_of(type(part))})  # fmt: skip
KINDS = {kind for flags in FLAGS for _, part in parts_of(made(flags)) for kind in type(part).__mro__}
KINDS |= {calls.Call, calls.StackCall, model_calls.ModelCall, cache.Cache, cache.KeysValues, cache.Buffer, Features}
OF_CLASSES = sorted({(base, name) for kind in KINDS for base, name in methods_of(kind)}, key=str)


def by_kind(cases):
    """Cases in groups, so that each test is one class, or one place, with all of its methods."""
    groups = {}
    for *key, name in cases:
        groups.setdefault(tuple(key), []).append(name)
    return groups.items()


PLACES = {flags: {place for own, place, _ in OWN if own == flags} for flags in FLAGS}
USUAL = {type(part): part for flags in ('default', 'rotary') for _, part in parts_of(made(flags))}


def some_and_others(names):
    """`forward` and two more names for the suite, and those for the night."""
    names = sorted(names, key=lambda name: name != 'forward')
    return names[:3], names[3:]


def own_groups(*otherwise):
    """Places of the default model that the one with rotary positions has as well are for the night, and so are parts
    of the third model that others have."""
    for (flags, place), names in by_kind(OWN):
        again = flags == 'default' and place in PLACES['rotary']
        again = again or (flags == 'others' and type(part_named(made(flags), place)) in USUAL)
        some, others = some_and_others(names)
        if others:
            yield pytest.param((flags, place), others, id=f'{flags}-{place}-others', marks=pytest.mark.nightly)
        yield pytest.param(
            (flags, place), some, id=f'{flags}-{place}', marks=pytest.mark.nightly if again else otherwise
        )


def class_groups():
    for (kind,), names in by_kind(OF_CLASSES):
        some, others = some_and_others(names)
        yield pytest.param(kind, some, id=kind.__name__)
        if others:
            yield pytest.param(kind, others, id=f'{kind.__name__}-others', marks=pytest.mark.nightly)


@pytest.mark.parametrize('where, names', [*own_groups()])
def test_a_method_of_one_instance_counts(where, names):
    """Shadowed by an attribute, as by libraries that wrap a `forward`."""
    flags, place = where
    for name in names:

        def change(net, name=name):
            part = part_named(net, place)
            vars(part)[name] = doubled(getattr(part, name))

        acts = assert_counts(made(flags), change)
        assert acts or name != 'forward' or place.endswith('adaptive_mlp')  # no norm reads a condition


@pytest.mark.parametrize('where, names', [*own_groups(pytest.mark.slow)])
def test_a_method_of_a_subclass_counts(where, names):
    flags, place = where
    for name in names:

        def change(net, name=name):
            part = part_named(net, place)
            kind = type(part)
            object.__setattr__(part, '__class__', type(kind.__name__, (kind,), {name: doubled(getattr(kind, name))}))

        acts = assert_counts(made(flags), change)
        assert acts or name != 'forward' or place.endswith('adaptive_mlp')


@pytest.mark.parametrize('kind, names', [*class_groups()])
def test_a_method_of_a_class_counts(kind, names):
    for name in names:
        net = made('default' if 'Absolute' in kind.__name__ or kind is TokenEmbedding else 'rotary')
        with pytest.MonkeyPatch.context() as patch:
            change = lambda _: patch.setattr(kind, name, doubled(vars(kind)[name]))  # noqa: B023, E731
            assert_counts(net, change, copied=False)
    assert {name: vars(kind)[name] for name in names if vars(kind)[name] is not WRITTEN[kind][name]} == {}


MODULES = (core, attend, dense, calls, model_calls, cache)
FUNCTIONS = [(module, name) for module in MODULES for name, value in vars(module).items()
             if inspect.isfunction(value) and value.__module__.startswith('x_transformers')]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(
    'module, names', [pytest.param(key[0], names, id=key[0].__name__) for key, names in by_kind(FUNCTIONS)]
)
def test_a_function_of_a_module_counts(module, names):
    """Such as `apply_rotary_pos_emb`, where the model looks for it."""
    for name in names:
        if name in ('doubled', 'remember'):
            continue
        old = getattr(module, name)
        with pytest.MonkeyPatch.context() as patch:
            assert_counts(made('rotary'), lambda net: patch.setattr(module, name, doubled(old)))  # noqa: B023


def test_the_function_that_rotates_counts(monkeypatch):
    changed = doubled(core.apply_rotary_pos_emb)
    assert assert_counts(made('rotary'), lambda net: monkeypatch.setattr(core, 'apply_rotary_pos_emb', changed))


@pytest.mark.parametrize('name', ['linear', 'gelu', 'scaled_dot_product_attention', 'embedding'])
def test_a_function_of_torch_counts(name, monkeypatch):
    old = getattr(torch.nn.functional, name)

    def change(net):
        monkeypatch.setattr(torch.nn.functional, name, lambda *args, **kwargs: 2 * old(*args, **kwargs))

    for flags in FLAGS:
        assert assert_counts(made(flags), change)
        monkeypatch.undo()


def other_values(value):
    """Other values of an attribute, of its own kind."""
    if isinstance(value, bool):
        return [not value]
    if isinstance(value, int):
        return [value + 1]
    if isinstance(value, float):
        return [value * 2 + 0.5]
    if isinstance(value, str):
        return ['tanh'] if value == 'none' else []
    return [2.0, nn.Parameter(torch.tensor(0.5, dtype=torch.double))] if value is None else []


# where a number has no meaning
MODULES_THAT_ARE_OFF = {*derived.OF_ATTENTION, *derived.OF_STACK, *derived.OF_MODEL}


def attributes():
    """Where, which one, and what it becomes. Which of the layers one is, is no choice."""
    for flags in FLAGS:
        for place, part in parts_of(made(flags)):
            for name, value in vars(part).items():
                if (
                    name == 'index'
                    or name in MODULES_THAT_ARE_OFF
                    or (flags == 'others' and type(part) in USUAL and name in vars(USUAL[type(part)]))
                ):
                    continue
                for number, other in enumerate(other_values(value)):
                    learned = isinstance(other, nn.Parameter)  # a feature hands parameters on to its host
                    if not (learned and isinstance(part, Feature)) and (name, other) != ('training', True):
                        yield flags, place, name, number


NUMBERS = [
    ('attn_layers.layers.0.1', 'logit_scale'),
    ('attn_layers.layers.0.1', 'causal'),
    ('attn_layers.layers.0.0.0', 'unit_offset'),
    ('attn_layers.layers.0.2', 'scale_residual_constant'),
    ('attn_layers.layers.1.1.ff.0.1', 'approximate'),
    ('attn_layers.rotary_pos_emb', 'interpolation_factor'),
    ('', 'return_only_embed'),
]
OTHER_NUMBERS = [
    ('attn_layers.layers.0.0.0', 'eps'),
    ('attn_layers.layers.0.1.q_norm', 'eps'),
    ('attn_layers.layers.0.1.k_norm', 'eps'),
    ('attn_layers.layers.0.1.k_norm', 'beta'),
    ('post_emb_norm', 'eps'),
]


@pytest.mark.parametrize(
    'flags, place, name', [*(('rotary', *one) for one in NUMBERS), *(('others', *one) for one in OTHER_NUMBERS)]
)
def test_a_number_counts(flags, place, name):
    def change(net):
        part = net.get_submodule(place)
        setattr(part, name, other_values(getattr(part, name))[0])

    assert assert_counts(made(flags), change) or name == 'causal'  # one query sees all keys


@pytest.mark.parametrize('flags', [*({'use_rmsnorm': one} for one in (False, True)), dict(norm_bias=True)], ids=str)
def test_a_gain_that_is_left_out_counts(flags):
    def change(net):
        norm = net.attn_layers.layers[0][0][0]
        for name in norm._parameters:
            setattr(norm, name, None)

    assert_counts(randomised(model(rotary_pos_emb=True, **flags)), change)


def test_a_scale_that_comes_later_counts():
    def change(net):
        net.attn_layers.layers[1][2].residual_scale = nn.Parameter(torch.full((8,), 2.0, dtype=torch.double))

    assert assert_counts(made('default'), change)


@pytest.mark.slow
def test_a_replaced_attribute_counts():
    acted = set()
    for flags, place, name, number in attributes():

        def change(net):
            part = part_named(net, place)  # noqa: B023
            setattr(part, name, other_values(vars(part)[name])[number])  # noqa: B023

        try:
            change(copy.deepcopy(made(flags)))
        except AttributeError as error:  # a flag, which is settled when the module is built
            assert 'was built: build another one' in str(error)
            continue
        if assert_counts(made(flags), change):
            acted.add(name)
    assert acted >= {'logit_scale', 'approximate', 'scale_residual_constant', 'unit_offset', 'residual_scale'}


@pytest.mark.parametrize('flags', FLAGS)
def test_a_chosen_kernel_counts(flags):
    def change(net):
        attn = net.attn_layers.layers[0][1]
        attn.flash = False
        attn.choose_kernel()

    assert_counts(made(flags), change)


def test_replaced_modules_and_dicts_count():
    """Also those that look the same: a hook joins the new dict, a weight the new parameters."""

    def hooks(net):
        linear = net.attn_layers.layers[0][1].to_v
        linear._forward_hooks = type(linear._forward_hooks)()
        passed(net), decoded(net)
        linear.register_forward_hook(lambda module, args, out: 2 * out)

    def parameters(net):
        linear = net.attn_layers.layers[0][1].to_v
        linear._parameters = dict(linear._parameters)
        passed(net), decoded(net)
        linear.weight = nn.Parameter(2 * linear.weight.detach())

    def layers(net):
        net.attn_layers.layers = copy.deepcopy(net.attn_layers.layers)
        with torch.no_grad():
            net.attn_layers.layers[0][1].to_v.weight.mul_(2)

    def bias(net):
        net.attn_layers.layers[0][1].to_v.bias = nn.Parameter(torch.ones(8, dtype=torch.double))

    def buffer(net):
        linear = net.attn_layers.layers[0][1].to_v
        weight = 2 * linear.weight.detach()
        del linear.weight
        linear.register_buffer('weight', weight)

    def everything(net):
        residual = net.attn_layers.layers[0][2]
        residual.__dict__ = {**vars(residual), 'scale_residual_constant': 3}

    def name(net):
        attn = net.attn_layers.layers[0][1]
        attn.other = lambda x, **_: 3 * x
        passed(net), decoded(net)
        vars(attn)['forward'] = vars(attn).pop('other')

    for change in (hooks, parameters, layers, bias, buffer, everything, name):
        assert assert_counts(made('default'), change), change.__name__


def test_the_garbage_collector_lists_values():
    """On the Pythons that tests run on; on others short cuts are slower."""
    assert untouched.LISTS_VALUES


# features of users


def own_feature(level, stage, **declared):
    """A feature that doubles what passes at a stage, adds a term, or chooses something else; None where it cannot."""
    kind = level[0].stages[stage]

    def ring(self, value, *call):
        return tree_map_only(torch.Tensor, lambda t: 2 * t if t.is_floating_point() else t, value)

    terms = {
        'mask': lambda self, call: torch.eye(call.keys, dtype=torch.bool)[-call.rows :],
        'bias': lambda self, call: torch.arange(call.keys, dtype=torch.double),
        'embed': lambda self, call: torch.ones((), dtype=torch.double),
        'keys': lambda self, call: (torch.ones(2, 2, 1, 4, dtype=torch.double),) * 2,
        'skips': lambda self, layer, call: layer.kind == 'f',
    }
    choices = {
        'views': lambda self, x: (x, 2 * x, x),
        'past': lambda self, k, v, call: call.with_past(2 * k, v),
        'sight': lambda self, call: None,
        'normaliser': lambda self, sim, call: sim.sigmoid(),
        'through': lambda self, run, x, call: 2 * run(x, call, range(len(call.order))),
        'finish': lambda self, x, call: 2 * x,
        'passes': lambda self, run, x, call: run(2 * x),
        'norm': lambda self: nn.LayerNorm(8, dtype=torch.double),
        'activation': lambda self: nn.Tanh(),
    }
    if stage == 'normalising':
        choices[stage] = lambda self, normalise: lambda sim, call: 2 * normalise(sim, call)
        kind = 'choice'
    method = ring if kind == 'ring' else {'term': terms, 'choice': choices}.get(kind, {}).get(stage)
    name = f'Own{stage.title()}'
    base = {id(ATTENTION): 'AttentionFeature', id(FEEDFORWARD): 'FeedForwardFeature', id(STACK): 'StackFeature',
            id(MODEL): 'ModelFeature'}[id(level)]  # fmt: skip
    base = next(one for one in level[0].__mro__ if one.__name__ == base)
    return None if method is None else type(name, (base,), {stage: method, '__doc__': 'Acts.', **declared})


STAGES = [(level, stage) for level, catalogue in CATALOGUES.items() for stage in catalogue[0].stages
          if own_feature(catalogue, stage) is not None]  # fmt: skip
HOW = {
    'always': {},
    'fused': dict(fuses=True),
    'waiting': dict(waits=True, takes={'rotary_pos_emb': 'angles'}),
}


def stages_and_ways():
    """One way after the other; each stage with all of them by night."""
    for number, (level, stage) in enumerate(STAGES):
        for place, how in enumerate(HOW):
            mark = [] if (number - place) % len(HOW) == 0 else [pytest.mark.nightly]
            yield pytest.param(level, stage, how, id=f'{level}-{stage}-{how}', marks=mark)


@pytest.mark.parametrize('level, stage, how', [*stages_and_ways()])
def test_a_feature_of_a_user_acts(level, stage, how):
    """At every stage, whatever it says of itself."""
    own = own_feature(CATALOGUES[level], stage, **HOW[how])
    net = model(rotary_pos_emb=True, features=(*CATALOGUES[level], own))
    for run in (decoded,):
        after, wanted = outcome(run, net), outcome(functools.partial(slowly, run), net)
        if torch.is_tensor(wanted):
            assert_close(after, wanted)
        else:
            assert after == wanted
    assert PlainStep.of(net, {}) is None or (how == 'waiting' and level == 'model')


@pytest.mark.parametrize('level', CATALOGUES)
def test_a_subclass_of_a_feature_does_not_opt_in(level):
    """Though it changes nothing yet."""
    plain = [kind for kind in CATALOGUES[level] if vars(kind).get('plain')]
    assert plain
    for kind in plain:
        assert not vars(type('Own', (kind,), {})).get('plain')
    if level in ('attention', 'model'):
        name = {'attention': 'Rotary', 'model': 'AbsolutePositions'}[level]
        kind = next(one for one in plain if one.__name__ == name)
        own = tuple(type(name, (kind,), {}) if one is kind else one for one in CATALOGUES[level])
        assert PlainStep.of(model(features=own, rotary_pos_emb=True), {}) is None


# stacks of users


class Twice(Decoder):
    def run_layers(self, *args):
        return 2 * super().run_layers(*args)


def test_a_subclass_of_a_stack_takes_the_ordinary_way():
    net = TransformerWrapper(num_tokens=7, max_seq_len=16, attn_layers=Twice(dim=8, depth=1, heads=2)).eval()
    assert PlainStep.of(net, {}) is None
    wrapper = AutoregressiveWrapper(net)
    cached, whole = (wrapper.generate(ids(2, 4), 8, temperature=0.0, cache_kv=kv) for kv in (True, False))
    assert torch.equal(cached, whole)


# code that is watched


def test_code_that_was_another_when_it_was_remembered(monkeypatch):
    own = nn.Linear.forward
    monkeypatch.setattr(nn.Linear, 'forward', lambda self, x: 2 * own(self, x))
    monkeypatch.setitem(WRITTEN, nn.Linear, WRITTEN[nn.Linear])
    untouched.remember_torchs(nn.Linear)
    assert PlainStep.of(model(), {}) is None


def test_what_python_adds_to_a_class_by_itself():
    class Own:
        def method(self):
            return 1

    WRITTEN[Own] = dict(vars(Own))
    try:
        code = Code([Own])
        Own.__slotnames__ = []
        assert '__slotnames__' in LAZY and code.holds() and code.holds()
        Own.other = 1
        assert not code.holds()
        del Own.other
        assert code.holds()
        Own.method = lambda self: 2
        assert not code.holds()
    finally:
        del WRITTEN[Own]


def test_any_call_of_a_module_is_watched(monkeypatch):
    """Tracers replace the call of all modules."""
    net = copy.deepcopy(made('default'))
    assert CALLED and PlainStep.of(net, {}) is not None
    monkeypatch.setattr(nn.Module, '__call__', doubled(nn.Module.__call__))
    assert PlainStep.of(net, {}) is None
    monkeypatch.undo()
    assert PlainStep.of(net, {}) is not None


# what a pass leaves behind beside the cache


class Sees(ATTENTION[0].__mro__[1]):
    """Keeps what attention leaves behind."""

    def __init__(self, host, values):
        super().__init__(host, values)
        self.left = []

    def attended(self, out, call):
        self.left.append(call.trace)
        return out


def hooked(net, left):
    def look(module, args, out):
        left.append(out[1] if isinstance(out[1], Intermediates) else out[1].attn_intermediates[0])

    return look


WATCHERS = {
    'hook of attention': lambda net, look: net.attn_layers.layers[0][1].register_forward_hook(look),
    'hook of the operator': lambda net, look: net.attn_layers.layers[0][1].attend.register_forward_hook(look),
    'hook of the stack': lambda net, look: net.attn_layers.register_forward_hook(look),
    'forward of the stack': lambda net, look: shadowed(net.attn_layers, look),
    'forward of the class': lambda net, look: subclassed(net.attn_layers.layers[0][1], look),
}


def shadowed(module, look):
    own = module.forward

    def forward(*args, **kwargs):
        out = own(*args, **kwargs)
        look(module, args, out)
        return out

    module.forward = forward


def subclassed(module, look):
    class Own(type(module)):
        def forward(self, *args, **kwargs):
            out = super().forward(*args, **kwargs)
            look(self, args, out)
            return out

    module.__class__ = Own


def maps_are_those_of_the_call(net, left, step):
    """Of a decode step: one query, the weights of which sum to one; read late, they are what they were."""
    left.clear()
    step(0)
    early = [one.post_softmax_attn.clone() for one in left]
    left.clear()
    step(0)
    with torch.no_grad():
        for p in net.parameters():
            p.data = p * 2 + 0.5
    late = [one.post_softmax_attn for one in left]
    assert late and len(late) == len(early)
    for one, other in zip(early, late, strict=True):
        assert one.shape[-2] == 1 and torch.equal(one, other)


def stepper(net, reader):
    """Reads the token behind a prompt, again and again."""
    reader.read(ids(2, 4))
    cache = reader.cache

    def step(_):
        reader.cache, reader.seen = cache, 4
        return reader.read(ids(2, 5))

    return step


@pytest.mark.parametrize('alone', [True, False])
@pytest.mark.parametrize('watcher', WATCHERS)
def test_who_watches_a_decode_step_gets_maps(watcher, alone):
    net, left = copy.deepcopy(model(attn_pre_talking_heads=True)), []
    WATCHERS[watcher](net, hooked(net, left))
    with torch.no_grad():
        maps_are_those_of_the_call(net, left, stepper(net, Reader(net, {}, brief=True, alone=alone)))


def test_a_feature_of_a_user_gets_maps_of_a_decode_step():
    net = model(attn_pre_talking_heads=True, features=(*ATTENTION, Sees))
    left = net.attn_layers.layers[0][1].features.find(Sees).left
    with torch.no_grad():
        maps_are_those_of_the_call(net, left, stepper(net, Reader(net, {}, brief=True, alone=True)))


def test_a_watcher_between_two_tokens_gets_maps():
    net, left = model(attn_pre_talking_heads=True), []
    with torch.no_grad():
        reader = Reader(net, {}, brief=True)
        step = stepper(net, reader)
        step(0)
        assert reader.is_private() and reader.intermediates.attn_intermediates[0].compute_maps is None
        shadowed(net.attn_layers, hooked(net, left))
        step(0)
        assert not reader.is_private() and left[0].post_softmax_attn is not None


@pytest.mark.parametrize('brief', [True, False])
def test_a_prompt_leaves_what_its_cache_needs(brief):
    net, x = model(), torch.arange(7).remainder(5)[None]
    with torch.no_grad():
        reader = Reader(net, {}, brief=brief)
        reader.read(x)
        left = reader.intermediates
        whole = net(x, return_intermediates=True)[1]
    assert left.cache.length == 7 and whole.hiddens and whole.layer_hiddens
    for name in ('hiddens', 'layer_hiddens', 'block_hiddens'):
        assert len(getattr(left, name)) == (0 if brief else len(getattr(whole, name))), name


@pytest.mark.parametrize('flag', ['attn_pre_talking_heads', 'residual_attn', 'attn_gate_values'])
def test_nobody_else_pays_for_maps(flag):
    """What nobody can read is not kept; who asks for intermediates has them."""
    net = model(**{flag: True, 'depth': 2})
    with torch.no_grad():
        step = stepper(net, reader := Reader(net, {}, brief=True, alone=True))
        brief = step(0)
        left = reader.intermediates.attn_intermediates
        assert all(one.compute_maps is None for one in left)
        step = stepper(net, reader := Reader(net, {}, alone=True))
        assert torch.equal(step(0), brief)
        assert all(one.post_softmax_attn is not None for one in reader.intermediates.attn_intermediates)


@pytest.mark.parametrize('module, name', [(calls, 'open_stack'), (model_calls, 'open_model')])
def test_calls_opened_by_others_are_seen(module, name, monkeypatch):
    own = getattr(module, name)
    monkeypatch.setattr(module, name, lambda *args: own(*args))
    assert not Private(model()).holds()


# what is kept of angles


@pytest.mark.parametrize('inference', [False, True])
def test_angles_of_the_caller_may_be_edited(inference):
    """What layers turned by is not kept beside a tensor that outlives the pass."""
    stack = model(rotary_pos_emb=True).attn_layers
    x, angles = torch.randn(1, 5, 8, dtype=torch.double), torch.randn(1, 5, 2)
    with torch.inference_mode(inference), torch.no_grad():
        angles = angles.clone()
        before = stack(x, rotary_pos_emb=(angles, 1.0))
        angles.data.mul_(2)
        after = stack(x, rotary_pos_emb=(angles, 1.0))
        assert_close(after, stack(x, rotary_pos_emb=(angles.clone(), 1.0)))
        assert not torch.allclose(after, before)
