"""Kernels in blocks: the numbers of the whole, memory that does not grow with the square of the length."""

import copy
import functools

import pytest
import torch
from hypothesis import assume, given, settings, strategies as st
from law_cases import (
    ARGUMENT_CASES,
    BY_NAME,
    CROSS_CASES,
    FLAG_CASES,
    INPUT_CASES,
    as_one,
    gradients,
    inputs_for,
    model_of,
    others_nightly,
    padded,
    randomise,
    run,
    shallow,
    weighted,
)
from oracles import assert_close, randn
from refusals import refusal
from torch.autograd import forward_ad
from torch.utils._python_dispatch import TorchDispatchMode

from x_transformers import Attention, Decoder, Encoder, TransformerWrapper
from x_transformers.core import calls, rows
from x_transformers.features import ATTENTION, AttentionFeature
from x_transformers.flags import flag
from x_transformers.kernels import dense
from x_transformers.x_transformers import AlibiPositionalBias, DynamicPositionBias, RelativePositionBias

# flags whose weights of a row depend on other rows, or that keep the maps
WHOLE = ('attn_inverted_attention', 'residual_attn', 'cross_residual_attn')


class blocked:
    """Inside, every call runs in blocks of so many rows."""

    def __init__(self, height):
        self.values = dict(LARGE={'cpu': 0, 'cuda': 0}, BLOCK={'cpu': 1, 'cuda': 1}, FEWEST_ROWS=height)

    def __enter__(self):
        self.before = {name: getattr(rows, name) for name in self.values}
        for name, value in self.values.items():
            setattr(rows, name, value)

    def __exit__(self, *_):
        for name, value in self.before.items():
            setattr(rows, name, value)


@pytest.fixture
def in_blocks():
    """The same from some point of a test on."""
    entered = []

    def enter(height):
        entered.append(blocked(height))
        entered[-1].__enter__()

    yield enter
    for context in reversed(entered):
        context.__exit__()


def outcome(net, inputs):
    """The output, and every gradient."""
    out, (names, parameters) = run(net, inputs), zip(*net.named_parameters(), strict=True)
    grads = torch.autograd.grad(weighted(out), parameters, allow_unused=True)
    return out.detach(), dict(zip(names, grads, strict=True))


def compare(net, inputs, *heights):
    out, grads = outcome(net, inputs)
    for height in heights:
        with blocked(height):
            found, found_grads = outcome(net, inputs)
        assert_close(found, out, what=f'output in blocks of {height}')
        for name, grad in grads.items():
            assert (grad is None) == (found_grads[name] is None), name
            if grad is not None:
                assert_close(found_grads[name], grad, what=f'gradient of {name} in blocks of {height}')


OF_ATTENTION = [
    case
    for case in (*FLAG_CASES, *ARGUMENT_CASES, *INPUT_CASES)
    if case.flag.startswith(('attn_', 'rel_pos', 'dynamic', 'alibi', 'rotary', 'polar', 'residual_attn', 'causal'))
    or case in INPUT_CASES
    or not case.flag
]


@pytest.mark.parametrize('case', others_nightly(OF_ATTENTION), ids=str)
def test_blocks_give_the_numbers_of_the_whole(case):
    case = shallow(case)
    net = model_of(case)
    compare(net, inputs_for(net, case), 3)


@pytest.mark.nightly
@pytest.mark.parametrize('case', OF_ATTENTION, ids=str)
def test_single_rows_give_the_numbers_of_the_whole(case):
    """In deeper models, of which each block has one row."""
    net = model_of(case)
    compare(net, inputs_for(net, case), 1, 3)


@pytest.mark.parametrize('case', others_nightly(CROSS_CASES), ids=str)
def test_blocks_across(case):
    net = model_of(case)
    compare(net, inputs_for(net, case), 2)


# what has positions, a mask or a bias of its own shape is not padded
OWN_SHAPE = {'pos', 'attn_bias', 'prepend_mask', 'attn_flash_pack_seq'}


PADDED = [case for case in OF_ATTENTION if not OWN_SHAPE & {*case.inputs, *case.stack}]


@pytest.mark.parametrize('case', others_nightly(PADDED, inputs_once=True), ids=str)
def test_blocks_with_padding(case):
    """On the right, and on the left with positions that begin behind it."""
    case = shallow(case)
    net = model_of(case)
    inputs = padded(net, inputs_for(net, case), 2, 1)
    length = inputs['x'].shape[1]
    mask = (torch.arange(length) >= torch.tensor([0, 2, 1])[:, None]) & (torch.arange(length) < length - 1)
    compare(net, {**inputs, 'mask': mask}, 4)


ATTENTION_FLAGS = [case for case in FLAG_CASES if case.flag.startswith('attn_') and case.kind is Decoder and case.stack]


def blocks_of_combinations(cases, height, masks):
    case = functools.reduce(lambda a, b: a.together(b), sorted(cases, key=str))
    assume(refusal(case) is None)
    net = model_of(case)
    inputs = inputs_for(net, case)
    if masks and 'attn_flash_pack_seq' not in case.stack:
        inputs['mask'] = torch.arange(7) < torch.tensor([7, 4, 5])[:, None]
    compare(net, inputs, height)


COMBINED = given(st.sets(st.sampled_from(ATTENTION_FLAGS), min_size=2, max_size=4), st.integers(1, 5), st.booleans())
test_blocks_of_combinations = pytest.mark.costly(
    settings(max_examples=10, derandomize=True)(COMBINED(blocks_of_combinations))
)
test_blocks_of_more_combinations = pytest.mark.nightly(
    settings(max_examples=60, derandomize=True)(COMBINED(blocks_of_combinations))
)


# single layers


def layer(**flags):
    torch.manual_seed(0)
    options = dict(dim=12, heads=4, dim_head=6) | flags
    return randomise(Attention(**options).double())


def leaves(value):
    return value.detach().clone().requires_grad_() if value.is_floating_point() else value


def layer_outcome(module, x, **inputs):
    """Output, and gradients of parameters and of all inputs that have one."""
    x, inputs = leaves(x), {n: leaves(v) if torch.is_tensor(v) else v for n, v in inputs.items()}
    out = module(x, **inputs)
    learned = [x, *(v for v in inputs.values() if torch.is_tensor(v) and v.requires_grad), *module.parameters()]
    rel_pos = inputs.get('rel_pos')
    learned += [] if rel_pos is None else [*rel_pos.parameters()]
    return out, torch.autograd.grad(weighted(out), learned, allow_unused=True)


HEIGHTS = (1, 3, 4)


def compare_layer(module, x, heights=HEIGHTS, **inputs):
    """Blocks of these heights and the whole; returns the gradients of the whole."""
    wanted, grads = layer_outcome(module, x, **inputs)
    for height in heights:
        with blocked(height):
            found, found_grads = layer_outcome(module, x, **inputs)
        assert_close(found, wanted)
        assert len(found_grads) == len(grads)
        for a, b in zip(found_grads, grads, strict=True):
            assert (a is None) == (b is None)
            if b is not None:
                assert_close(a, b)
    return grads


N = 9
T5 = functools.partial(RelativePositionBias, scale=2.0, num_buckets=8, max_distance=6)
MODULES = {
    'T5': lambda causal: T5(heads=4, causal=causal),
    'dynamic': lambda causal: DynamicPositionBias(5, heads=4, depth=2),
    'alibi': lambda causal: AlibiPositionalBias(4),
}
SETTINGS = {
    'plain': {},
    'grouped': dict(kv_heads=2),
    'one key head': dict(one_kv_head=True),
    'wide values': dict(value_dim_head=9),
    'narrow values': dict(value_dim_head=3),
    'memory': dict(num_mem_kv=2),
    'zero key': dict(add_zero_kv=True, num_mem_kv=1),
    'window': dict(max_attend_past=2),
    'window, memory': dict(max_attend_past=2, num_mem_kv=2),
    'window, formula': dict(max_attend_past=3, num_mem_kv=2, pre_talking_heads=True),
    'formula': dict(flash=False),
    'laser': dict(laser=True),
}


BIASES = [None, *MODULES]
SHAPES = ['b h i j', '1 h i j', 'h i j', 'i j', '1 1 1 j', 'b 1 i 1']
GIVEN = ['attn_bias', 'attn_mask', 'attn_delta']


def layer_of(setting, causal):
    return layer(causal=causal, **SETTINGS[setting])


def rel_pos_of(bias, causal):
    return {} if bias is None else dict(rel_pos=randomise(MODULES[bias](causal).double()))


def given_of(name, shape):
    """A bias, a mask or a delta of that shape, and what comes with it."""
    sizes = dict(b=2, h=4, i=N, j=N) | {'1': 1}
    bias = randn(*(sizes[letter] for letter in shape.split()), seed=1)
    if name == 'attn_mask':
        return dict(attn_mask=bias > -0.5, rel_pos=AlibiPositionalBias(4).double())
    return {name: bias} if name == 'attn_bias' else {name: bias, 'attn_mask': randn(N, N, seed=3) > 0}


# every pair of a setting and of something else, each causal and not, in blocks of one height; by night all with all


@pytest.mark.parametrize('number', range(len(SETTINGS)), ids=[*SETTINGS])
def test_layers_with_biases(number):
    for place, bias in enumerate(BIASES):
        causal = (number + place) % 2 == 0
        rel_pos = rel_pos_of(bias, causal)
        compare_layer(
            layer_of([*SETTINGS][number], causal), randn(2, N, 12), [HEIGHTS[(number + place) % 3]], **rel_pos
        )


@pytest.mark.parametrize('number', range(len(SETTINGS)), ids=[*SETTINGS])
def test_layers_with_given_biases_and_masks(number):
    """Each is causal once and once not, in different shapes."""
    setting = [*SETTINGS][number]
    for place, shape in enumerate(SHAPES):
        name, causal = GIVEN[(number + place) % 3], (number + place) % 6 < 3
        if (setting, name) != ('laser', 'attn_delta'):
            height = [HEIGHTS[(number + place // 3) % 3]]
            compare_layer(layer_of(setting, causal), randn(2, N, 12), height, **given_of(name, shape))


@pytest.mark.nightly
@pytest.mark.parametrize('causal', [True, False])
@pytest.mark.parametrize('bias', BIASES)
@pytest.mark.parametrize('setting', SETTINGS)
def test_all_layers_with_biases(setting, bias, causal):
    compare_layer(layer_of(setting, causal), randn(2, N, 12), **rel_pos_of(bias, causal))


@pytest.mark.nightly
@pytest.mark.parametrize('causal', [True, False])
@pytest.mark.parametrize('setting', SETTINGS)
@pytest.mark.parametrize('shape', SHAPES)
def test_all_layers_with_given_biases_and_masks(setting, shape, causal):
    for name in GIVEN:
        if (setting, name) != ('laser', 'attn_delta'):
            compare_layer(layer_of(setting, causal), randn(2, N, 12), **given_of(name, shape))


@pytest.mark.parametrize('heights', [(4,), pytest.param(HEIGHTS, marks=pytest.mark.nightly)], ids=str)
@pytest.mark.parametrize('causal', [True, False])
@pytest.mark.parametrize('setting', SETTINGS)
def test_layers_with_padding(setting, causal, heights):
    """Rows may see nothing at all: zeros, and gradients that are finite."""
    module, x = layer_of(setting, causal), randn(3, N, 12)
    for mask in (
        torch.arange(N) >= torch.tensor([0, 3, N])[:, None],
        torch.arange(N) < torch.tensor([N, 3, 0])[:, None],
        (torch.arange(N) % 3 == 1).expand(3, -1),
    ):
        grads = compare_layer(module, x, heights, mask=mask)
        assert all(grad.isfinite().all() for grad in grads if grad is not None)
    with torch.no_grad():
        with blocked(2):
            alone = module(x, context_mask=mask)
        assert_close(alone, module(x, context_mask=mask))


@pytest.mark.parametrize('setting', SETTINGS)
def test_layers_with_memories_and_other_lengths(setting):
    module, x = layer(causal=True, **SETTINGS[setting]), randn(2, N, 12)
    mask = torch.arange(4) > torch.tensor([0, 3])[:, None]
    compare_layer(module, x, mem=randn(2, 4, 12, seed=1), mem_mask=mask)
    if 'max_attend_past' in SETTINGS[setting]:
        return
    for length in (4, 14):
        compare_layer(layer(**SETTINGS[setting]), x, context=randn(2, length, 12, seed=1))
        compare_layer(module, x, context=randn(2, length, 12, seed=1))  # causal, aligned at the end


@pytest.mark.parametrize('setting', SETTINGS)
@pytest.mark.parametrize('bias', [None, 'T5'])
def test_several_new_tokens_behind_a_cache(setting, bias):
    module, x = layer(causal=True, **SETTINGS[setting]), randn(2, N, 12)
    rel_pos = {} if bias is None else dict(rel_pos=randomise(MODULES[bias](True).double()))
    whole = module(x, **rel_pos)
    for height in (1, 2, 3):
        with blocked(height):
            first, cache = module(x[:, :4], return_intermediates=True, **rel_pos)
            rest = module(x[:, 4:], cache=cache, **rel_pos)
        assert_close(torch.cat((first, rest), dim=1), whole)


def test_positions_of_the_user():
    for bias in MODULES:
        rel_pos = randomise(MODULES[bias](True).double())
        pos = torch.randint(1, 4, (2, N), generator=torch.Generator().manual_seed(0)).cumsum(dim=-1)
        compare_layer(layer(causal=True), randn(2, N, 12), rel_pos=rel_pos, pos=pos)


# noise


@pytest.mark.parametrize('flags', [{}, dict(max_attend_past=3), dict(pre_talking_heads=True), dict(num_mem_kv=2)])
def test_gradients_with_dropout(flags):
    """The backward pass sees the weights that the forward pass dropped: slopes agree with finite differences."""
    module, x = layer(dropout=0.4, causal=True, **flags).train(), randn(2, N, 12).requires_grad_()
    rel_pos = randomise(T5(heads=4, causal=True).double())

    def loss(x, table, seed=3):
        torch.manual_seed(seed)
        before = rel_pos.relative_attention_bias.weight
        del rel_pos.relative_attention_bias.weight
        rel_pos.relative_attention_bias.weight = table
        out = module(x, rel_pos=rel_pos)
        del rel_pos.relative_attention_bias.weight
        rel_pos.relative_attention_bias.weight = before
        return weighted(out)

    table = rel_pos.relative_attention_bias.weight.detach().clone().requires_grad_()
    with blocked(2):
        assert loss(x, table) != loss(x, table, seed=4)
        torch.autograd.gradcheck(loss, (x, table), fast_mode=True, atol=1e-4)


def test_dropout_drops_its_share():
    """Of weights that are all alike, as many as it says, and the mean stays."""
    module = Attention(dim=8, heads=2, dim_head=4, dropout=0.25, project_out=False, value_dim_head=4).train()
    with torch.no_grad():
        module.to_q.weight.zero_()
        module.to_v.weight.zero_()
        module.to_v.weight[:, 0] = 1.0
    x = torch.zeros(1, 400, 8)
    x[..., 0] = 1.0
    with blocked(100):
        out = module(x)
    assert abs(out.mean().item() - 1) < 0.02
    assert abs(out[..., 0].var().item() - (1 / 0.75 - 1) / 400) < 3e-4


@pytest.mark.parametrize('hard', [True, False])
@pytest.mark.parametrize('flags', [{}, dict(head_learned_sink=True), dict(max_attend_past=2, num_mem_kv=2)])
def test_gumbel_noise_is_that_of_the_maps(hard, flags):
    module = layer(gumbel_softmax=True, gumbel_softmax_hard=hard, causal=True, flash=None, **flags).train()
    x = randn(2, N, 12)
    with blocked(2):
        out, inter = module(x, return_intermediates=True)
        attn, v = inter.post_softmax_attn, inter.values
    sinks = int('head_learned_sink' in flags)
    v = v if 'num_mem_kv' not in flags else torch.cat((module.mem_v.expand(2, -1, -1, -1), v), dim=2)
    heads = attn[..., sinks:] @ v
    assert_close(out, module.to_out(heads.transpose(1, 2).flatten(2)))


def test_global_noise_goes_on():
    """Drawing again for the backward pass leaves the generator where it was."""
    module, x = layer(dropout=0.3, causal=True, max_attend_past=3).train(), randn(1, N, 12)
    with blocked(2):
        torch.manual_seed(0)
        out = module(x)
        state = torch.get_rng_state()
        out.sum().backward()
    assert torch.equal(torch.get_rng_state(), state)


# other dtypes and ways to run


@pytest.mark.parametrize('name', ['plain', 'attn_max_attend_past', 'rel_pos_bias', 'attn_pre_talking_heads'])
def test_blocks_in_half_precision(name):
    case = BY_NAME[name]
    net, inputs = copy.deepcopy(model_of(case)).float(), inputs_for(model_of(case), case)
    with blocked(3), torch.autocast('cpu', torch.bfloat16):
        mixed = run(net, inputs)
        grads = gradients(net, inputs)
    assert all(grad.isfinite().all() for grad in grads.values() if grad is not None)
    assert_close(mixed.double(), run(net, inputs).double(), tolerance=0.02)
    half = copy.deepcopy(net).bfloat16()
    with blocked(3):
        low = run(half, inputs)
    assert low.dtype == torch.bfloat16
    assert_close(low.double(), run(net, inputs).double(), tolerance=0.03)


@pytest.mark.costly
def test_a_compiled_layer_has_no_blocks(in_blocks, monkeypatch):
    module, x = layer(causal=True, max_attend_past=2), randn(1, N, 12)
    wanted = module(x)
    in_blocks(2)
    torch._dynamo.reset()
    monkeypatch.setattr(dense, 'run_additive', None)  # that of blocks
    assert_close(torch.compile(module, fullgraph=True, backend='eager')(x), wanted)


@pytest.mark.slow
@pytest.mark.parametrize('name', ['plain', 'rel_pos_bias', 'attn_selective', 'attn_max_attend_past'])
def test_compiled_graphs_have_no_blocks(name, in_blocks):
    """One graph for all lengths; it does not cut."""
    case = BY_NAME[name].with_keywords(depth=1)
    net = copy.deepcopy(model_of(case))
    inputs = inputs_for(net, case)
    wanted = run(net, inputs)
    in_blocks(2)
    torch._dynamo.reset()
    compiled = torch.compile(net, fullgraph=True, backend='eager')
    assert_close(as_one(net, compiled(**inputs)), wanted)


@pytest.mark.filterwarnings('ignore:There is a performance drop')
def test_torch_func_runs_the_whole(in_blocks):
    module, x = layer(causal=True, max_attend_past=2), randn(3, 1, N, 12)
    wanted = torch.stack([module(row) for row in x])
    in_blocks(2)
    assert_close(torch.func.vmap(module)(x), wanted)


def test_forward_mode_runs_the_whole(in_blocks):
    """Without `torch.func`: by dual numbers."""
    module, x, tangent = layer(causal=True, max_attend_past=2), randn(1, N, 12), randn(1, N, 12)
    _, wanted = torch.func.jvp(module, (x,), (tangent,))
    in_blocks(2)
    with forward_ad.dual_level():
        out = module(forward_ad.make_dual(x, tangent))
        assert_close(forward_ad.unpack_dual(out).tangent, wanted)


SLOPES = [dict(max_attend_past=2), dict(num_mem_kv=1, kv_heads=2), dict(laser=True)]


def second_slopes(module, x, **inputs):
    """The gradient of the gradient."""
    x = x.detach().requires_grad_()
    learned = [x, *module.parameters(), *(p for n in inputs if n == 'rel_pos' for p in inputs[n].parameters())]
    (slope,) = torch.autograd.grad(weighted(module(x, **inputs).sin()), x, create_graph=True)
    return torch.autograd.grad(slope.sin().sum(), learned, allow_unused=True)


@pytest.mark.parametrize('flags', SLOPES, ids=str)
@pytest.mark.parametrize('bias', [None, 'T5', 'alibi'])
def test_slopes_of_slopes(flags, bias):
    """Second derivatives in blocks are those of the formula, where some rows see nothing, too."""
    module, x = layer(causal=True, **flags), randn(2, N, 12)
    inputs = {'mask': torch.arange(N) >= torch.tensor([[0], [3]])}
    inputs |= {} if bias is None else dict(rel_pos=randomise(MODULES[bias](True).double()))
    with blocked(2):
        found = second_slopes(module, x, **inputs)
    module.flash = False
    module.choose_kernel()
    for wanted, grad in zip(second_slopes(module, x, **inputs), found, strict=True):
        assert (wanted is None) == (grad is None)
        if wanted is not None:
            assert_close(grad, wanted, 'slope')


@pytest.mark.parametrize('flags', SLOPES, ids=str)
def test_slopes_of_slopes_with_dropout(flags):
    """The noise is that of the first pass."""
    module, x = layer(causal=True, dropout=0.4, **flags).train(), randn(1, N, 12).requires_grad_()

    def loss(x):
        torch.manual_seed(1)
        return weighted(module(x))

    with blocked(2):
        assert torch.autograd.gradgradcheck(loss, x, fast_mode=True, atol=1e-4)


@pytest.mark.parametrize('flags', [*SLOPES, dict(max_attend_past=2, dropout=0.4)], ids=str)
def test_several_losses_at_once(flags):
    """With `is_grads_batched`, the backward pass runs in a vmap."""
    module, x = layer(causal=True, **flags).train(), randn(2, N, 12).requires_grad_()
    upstream, learned = randn(3, 2, N, 12, seed=2), [x, *module.parameters()]
    with blocked(2):
        torch.manual_seed(1)
        out = module(x)
        wanted = [torch.autograd.grad(out, learned, one, retain_graph=True, allow_unused=True) for one in upstream]
        found = torch.autograd.grad(out, learned, upstream, is_grads_batched=True, allow_unused=True)
    for grad, each in zip(found, zip(*wanted, strict=True), strict=True):
        assert (grad is None) == (each[0] is None)
        if grad is not None:
            assert_close(grad, torch.stack(each), 'gradient')


# the choice of a kernel


def spied(own, ran, *args, **options):
    ran.append(own.__name__)
    return own(*args, **options)


def kernel_names(module, x, monkeypatch, **inputs):
    """The kernels that a call ran."""
    ran = []
    for name in ('run_eager', 'run_fused', 'run_additive', 'fold_heads', 'run_in_blocks', 'grouped_sdpa'):
        monkeypatch.setattr(dense, name, functools.partial(spied, getattr(dense, name), ran))
    module(x, **inputs)
    monkeypatch.undo()
    return ran


@pytest.mark.parametrize(
    ('flags', 'inputs', 'kernel'),
    [
        ({}, {}, 'fold_heads'),
        ({}, dict(mask=torch.ones(1, N, dtype=torch.bool)), 'fold_heads'),
        (dict(max_attend_past=2), {}, 'run_additive'),
        (dict(num_mem_kv=2), {}, 'run_additive'),
        ({}, dict(attn_bias=torch.zeros(N, N, dtype=torch.float64)), 'run_additive'),
        ({}, dict(attn_bias=torch.zeros(N, N, dtype=torch.float64, requires_grad=True)), 'run_in_blocks'),
        (dict(data_dependent_alibi=True), {}, 'run_in_blocks'),
        (dict(pre_talking_heads=True), {}, 'run_in_blocks'),
        (dict(selective=True), {}, 'run_in_blocks'),
    ],
)
def test_kernel_of_a_large_call(flags, inputs, kernel, monkeypatch):
    module = layer(causal=True, **flags)
    with blocked(3):
        assert kernel in kernel_names(module, randn(1, N, 12), monkeypatch, **inputs)
    assert not {'fold_heads', 'run_additive', 'run_in_blocks'} & {
        *kernel_names(module, randn(1, N, 12), monkeypatch, **inputs)
    }


def test_one_query_is_never_cut(in_blocks, monkeypatch):
    module, x = layer(causal=True, max_attend_past=2), randn(1, N, 12)
    _, cache = module(x, return_intermediates=True)
    in_blocks(2)
    assert not {'fold_heads', 'run_additive', 'run_in_blocks'} & {
        *kernel_names(module, x[:, :1], monkeypatch, cache=cache)
    }


class Nosy(AttentionFeature):
    """The mean over all queries joins the logits."""

    nosy = flag(False, 'look at all rows')

    def scores(self, sim, call):
        return sim + sim.mean(dim=-2, keepdim=True)


class Modest(AttentionFeature):
    """The mean over the keys."""

    modest = flag(False, 'look at one row')
    row_wise = needs_masked_keys = True
    heights = ()

    def scores(self, sim, call):
        Modest.heights += (sim.shape[-2],)
        return sim - sim.mean(dim=-1, keepdim=True) + sim.square().mean(dim=-1, keepdim=True) * sim


@pytest.mark.parametrize('own', [Nosy, Modest])
def test_features_of_the_user(own):
    """What does not say that it is row-wise gets all rows at once."""
    name = next(iter(own.flags))
    for causal in (True, False):
        module = layer(features=(*ATTENTION, own), causal=causal, **{name: True})
        compare_layer(module, randn(2, N, 12))
    assert own is Nosy or {1, 3, 4, N} <= set(Modest.heights)


# memory


class Largest(TorchDispatchMode):
    """The bytes of the largest tensor that any operation returns."""

    def __init__(self):
        super().__init__()
        self.bytes, self.by = 0, None

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for t in torch.utils._pytree.tree_leaves(out):
            if torch.is_tensor(t) and t.untyped_storage().nbytes() > self.bytes:
                self.bytes, self.by = t.untyped_storage().nbytes(), func
        return out


LONG = 384


def largest(stack, flags, height=16, mask=None, keeps=False, **inputs):
    """The largest tensor of a training step of a small stack."""
    torch.manual_seed(0)
    net = stack(dim=8, depth=1, heads=2, attn_dim_head=4, ff_mult=1, **flags)
    x = torch.randn(1, LONG, 8, requires_grad=True)
    with Largest() as record:
        if height is None:
            out = net(x, mask=mask, return_hiddens=keeps, **inputs)
        else:
            with blocked(height):
                out = net(x, mask=mask, return_hiddens=keeps, **inputs)
                (out[0] if keeps else out).sum().backward()
    return record


LINEAR = [
    case
    for case in FLAG_CASES
    if case.flag.startswith(('attn_', 'rel_pos', 'dynamic', 'alibi', 'rotary', 'polar'))
    and case.stack
    and case.flag not in WHOLE
    and 'cross_attend' not in case.stack
    and not any(isinstance(value, tuple) for value in case.stack.values())  # one per layer
    and not {'attn_hybrid_module', 'attn_dim_latent_kv'} & set(case.stack)
]


def check_no_tensor_grows(case, mask=None):
    """Not even a mask of one byte per score."""
    smaller = dict(rotary_emb_dim=2, attn_qk_norm_groups=1, attn_cope_max_pos=2)
    flags = {n: smaller.get(n, v) for n, v in case.stack.items() if n != 'attn_dim_head'} | dict(verbose=False)
    flags |= dict(attn_cope_max_pos=2) if 'attn_use_cope' in flags else {}  # a block is of so many times its scores
    flags |= dict(attn_kernel_chunk=16) if 'attn_kernel' in flags else {}  # its tensors are of n times a chunk
    flags |= dict(attn_local_heads=0) if 'attn_num_clusters' in flags else {}  # a window has chunks of 64
    flags |= dict(attn_linformer_max_len=LONG) if 'attn_linformer_k' in flags else {}
    flags |= dict(attn_aft_max_len=LONG, attn_aft_window=4, attn_aft_rank=4) if 'attn_aft' in flags else {}
    flags |= dict(attn_cluster_size=32) if flags.get('attn_cluster') == 'sinkhorn' else {}  # scores of blocks
    flags |= dict(attn_moba_block=64) if 'attn_moba_block' in flags else {}  # scores of blocks
    flags |= dict(attn_lsh_rounds=1) if flags.get('attn_cluster') == 'lsh' else {}  # each of which reads every key
    bounds = torch.tensor([0, 100, LONG])
    packed = dict(flash_pack_seq_kwargs=dict(cu_seqlens_q=bounds, cu_seqlens_k=bounds))
    record = largest(case.kind, flags, mask=mask, **(packed if case.flag == 'attn_flash_pack_seq' else {}))
    assert record.bytes < LONG * LONG, f'{record.by} returned {record.bytes} bytes'


OF_SCORES = {*dense.EAGER_STAGES, 'prepend_kv', 'attend', 'pre_attention', 'bias', 'mask'}


def beside_scores_nightly(cases):
    """What acts on queries, values and outputs alone knows of no pairs."""
    beside = [c for c in cases if c.flag.startswith('attn_') and not OF_SCORES & {*c.feature.runs_at()}]
    return [pytest.param(c, marks=pytest.mark.nightly) if c in beside else c for c in others_nightly(cases)]


@pytest.mark.parametrize('case', beside_scores_nightly(LINEAR), ids=str)
def test_no_tensor_grows_with_the_square(case):
    check_no_tensor_grows(case)


# a window, a bias and what is row-wise: one of each kernel
MASKED = {'attn_max_attend_past', 'rel_pos_bias', 'attn_pre_talking_heads', 'rotary_pos_emb', 'attn_kernel'}


@pytest.mark.parametrize(
    'case',
    [
        pytest.param(case, marks=() if case.name in MASKED else pytest.mark.nightly)
        for case in LINEAR
        # places of 64 keys for each query, in whole numbers: their growth is counted in test_patterns
        if case.flag not in ('attn_flash_pack_seq', 'attn_sparse_pattern', 'attn_global_separate_qkv')
    ],
    ids=str,
)
def test_no_tensor_grows_with_the_square_of_masked_tokens(case):
    check_no_tensor_grows(case, (torch.arange(LONG) < LONG - 9)[None])


@pytest.mark.parametrize(
    'flags',
    [
        dict(attn_pre_talking_heads=True),
        dict(attn_sparse_topk=3),
        dict(attn_selective=True),
        dict(rel_pos_bias=True),
        dict(attn_max_attend_past=3),
    ],
    ids=str,
)
def test_in_one_piece_there_is_such_a_tensor(flags):
    """The measure sees what the blocks avoid."""
    assert largest(Decoder, flags, height=None).bytes >= LONG * LONG


@pytest.mark.parametrize('flags', [{}, dict(attn_pre_talking_heads=True), dict(rel_pos_bias=True)], ids=str)
def test_maps_that_nobody_reads_cost_nothing(flags):
    assert largest(Decoder, flags, keeps=True).bytes < LONG * LONG


NO_MAPS = {'attn_kernel', 'attn_aft', 'attn_cluster', 'attn_linformer_k'}
HAVE_MAPS = [case for case in ATTENTION_FLAGS if not NO_MAPS & set(case.stack)]


@pytest.mark.parametrize('case', others_nightly(HAVE_MAPS), ids=str)
def test_maps_read_after_blocks(case):
    """They are those of the whole."""
    net = model_of(case)
    inputs = inputs_for(net, case)
    _, wanted = run(net, inputs, return_intermediates=True)
    with blocked(3):
        _, found = run(net, inputs, return_intermediates=True)
        for a, b in zip(found.attn_intermediates, wanted.attn_intermediates, strict=True):
            for one, other in zip(a.to_tuple(), b.to_tuple(), strict=True):
                assert_close(one, other)


def test_a_bias_is_computed_once_for_all_layers(in_blocks, monkeypatch):
    in_blocks(2)
    calls = []
    own = DynamicPositionBias.of_distance
    monkeypatch.setattr(DynamicPositionBias, 'of_distance', lambda *args: calls.append(1) or own(*args))
    net = Encoder(dim=8, depth=3, heads=2, attn_dim_head=4, dynamic_pos_bias=True)
    net(torch.randn(1, N, 8)).sum().backward()
    assert len(calls) == 1


def test_large_calls_are_cut_by_default():
    """Nothing has to be switched on, and small calls stay whole."""
    x = torch.zeros(1, 1, 1)
    assert calls.is_large(x, 1, 8, 1024, 1024)
    assert not calls.is_large(x, 4, 8, 256, 256)
    assert not calls.is_large(x, 64, 64, 1, 10**6)


@pytest.mark.costly
def test_default_blocks_in_a_model():
    """Of real size: outputs and gradients agree."""
    torch.manual_seed(0)
    net = TransformerWrapper(
        num_tokens=9,
        max_seq_len=700,
        attn_layers=Decoder(dim=32, depth=1, heads=16, attn_dim_head=8, rel_pos_bias=True, attn_num_mem_kv=1),
    ).double()
    inputs = dict(x=torch.randint(0, 9, (1, 700), generator=torch.Generator().manual_seed(0)))
    found = outcome(net, inputs)
    rows.LARGE['cpu'], before = 2**40, rows.LARGE['cpu']
    wanted = outcome(net, inputs)
    rows.LARGE['cpu'] = before
    assert_close(found[0], wanted[0])
    for name, grad in wanted[1].items():
        assert_close(found[1][name], grad, what=name)
