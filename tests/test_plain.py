"""The layers of a plain stack written out give what their stages give, to the bit, and stand back for all else."""

import copy
import gc
import pickle
import weakref

import pytest
import torch
import torch.nn.functional as F
from oracles import assert_close, randomised
from sweeps import some
from torch import nn
from torch.fx.experimental.proxy_tensor import make_fx

from x_transformers import Decoder, Encoder, TransformerWrapper, x_transformers as core
from x_transformers.core import rows
from x_transformers.fast.plain import PlainLayers
from x_transformers.features.catalogue import STACK
from x_transformers.features.levels import StackFeature
from x_transformers.features.norms import LayerNorm
from x_transformers.flags import flag


def stack(kind=Decoder, **flags):
    torch.manual_seed(0)
    net = kind(**{'dim': 16, 'depth': 2, 'heads': 4, 'attn_dim_head': 8, 'verbose': False, **flags})
    return randomised(net).float()


def tokens(*shape):
    return torch.randn(*(shape or (2, 9, 16)), generator=torch.Generator().manual_seed(1), requires_grad=True)


@pytest.fixture
def runs(monkeypatch):
    """Counts the passes through layers that are written out."""
    taken, run = [], PlainLayers.__call__
    monkeypatch.setattr(PlainLayers, '__call__', lambda self, *args: taken.append(1) or run(self, *args))
    return taken


def ordinary(function, *args, **kwargs):
    """What a function gives where nothing is written out."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(PlainLayers, 'of', lambda *_: None)
        return function(*args, **kwargs)


def passed(net, x, **inputs):
    """Output and gradients of a pass."""
    out = net(x, **inputs)
    learned = [p for p in net.parameters() if p.requires_grad]
    return [out, *torch.autograd.grad(out.square().sum(), (x, *learned), allow_unused=True)]


def assert_same(own, wanted):
    for one, other in zip(own, wanted, strict=True):
        assert (one is None) == (other is None)
        assert one is None or torch.equal(one, other)


YARN = dict(kind='yarn', factor=4.0, length=8)
PLAIN = {
    'default': {},
    'encoder': dict(kind=Encoder),
    'rotary': dict(rotary_pos_emb=True),
    'rotary, both ways': dict(kind=Encoder, rotary_pos_emb=True),
    'rotary, scaled': dict(rotary_pos_emb=True, rotary_theta=50.0, rotary_scaling=YARN, attn_kv_heads=2),
    'layers turn otherwise': dict(rotary_pos_emb=True, depth=3, rotary_layers=(dict(scaling=YARN), False, True)),
    'some features turn': dict(rotary_pos_emb=True, rotary_emb_dim=4, rotary_interpolation_factor=2.0),
    'some heads turn': dict(rotary_pos_emb=True, rotate_num_heads=2),
    'kv heads': dict(attn_kv_heads=2, rotary_pos_emb=True),
    'one kv head': dict(attn_one_kv_head=True),
    'rmsnorm, gated': dict(use_rmsnorm=True, ff_glu=True, ff_swish=True, ff_no_bias=True),
    'gated with gains': dict(ff_glu=True, ff_glu_mult_bias=True),
    'gated and clamped': dict(ff_glu=True, ff_swish=True, ff_glu_softclamp=True),
    'one gain': dict(use_scalenorm=True),
    'qk norm': dict(attn_qk_norm=True, rotary_pos_emb=True),
    'qk norm of groups': dict(attn_qk_norm=True, attn_qk_norm_groups=2, attn_qk_norm_dim_scale=True),
    'rms norm of heads': dict(attn_qk_rmsnorm=True, attn_kv_heads=2, rotary_pos_emb=True, attn_value_rmsnorm=True),
    'rms norm of queries and keys': dict(attn_qk_rmsnorm=True, attn_kv_heads=2, rotary_pos_emb=True),
    'normed heads of which some turn': dict(attn_qk_rmsnorm=True, rotary_pos_emb=True, rotate_num_heads=2),
    'normed heads, no turns': dict(attn_qk_rmsnorm=True, use_rmsnorm=True, norm_add_unit_offset=False),
    'biases': dict(attn_qkv_bias=True, attn_out_bias=True, attn_softmax_scale=0.4),
    'some biases': dict(attn_qkv_bias='qv', attn_kv_heads=2, rotary_pos_emb=True),
    'head norms': dict(attn_qk_head_norm='rms', attn_kv_heads=2, rotary_pos_emb=True, norm_add_unit_offset=False),
    'head norms, each': dict(attn_qk_head_norm='rms', attn_qk_head_norm_shared=False, attn_kv_heads=2),
    'head norms, some turn': dict(attn_qk_head_norm='rms', rotary_pos_emb=True, rotate_num_heads=2),
    'head norms with means': dict(attn_qk_head_norm='layer', attn_qk_head_norm_bias=True, rotary_pos_emb=True),
    'rms norm of keys': dict(attn_k_rmsnorm=True),
    'alibi': dict(alibi_pos_bias=True),
    'alibi of some heads': dict(alibi_pos_bias=True, alibi_num_heads=2, kind=Encoder, attn_kv_heads=2),
    't5': dict(rel_pos_bias=True, attn_qk_norm=True),
    'dynamic': dict(dynamic_pos_bias=True),
    'value residual': dict(add_value_residual=True, depth=3),
    'half of the values': dict(add_value_residual=True, learned_value_residual_mix=False, attn_value_rmsnorm=True),
    'norms behind': dict(pre_norm=False),
    'no offset': dict(norm_add_unit_offset=False),
    'sandwich': dict(sandwich_norm=True),
    'eps': dict(norm_eps=0.1, use_rmsnorm=True, sandwich_norm=True),
    'eps without offset': dict(norm_eps=0.1, use_rmsnorm=True, norm_add_unit_offset=False),
    'biases of norms': dict(norm_bias=True, norm_eps=1e-3, ff_activation='gelu_tanh', ff_dim_inner=20),
    'biases without offset': dict(norm_bias=True, norm_add_unit_offset=False, ff_activation='relu'),
    'no gains': dict(norm_affine=False, ff_activation='quick_gelu'),
    'no gains, rms': dict(norm_affine=False, use_rmsnorm=True, ff_activation='tanh'),
    'norms of branches': dict(branch_post_norm=True, use_rmsnorm=True, norm_eps=0.1),
    'no first norm': dict(first_attn_norm=False),
    'gated without bias': dict(ff_glu=True, ff_glu_bias=False, ff_no_bias=True, ff_activation='silu'),
    'gated and bounded': dict(ff_glu=True, ff_swiglu_limit=0.3),
    'side by side': dict(parallel_block=True, rotary_pos_emb=True),
    'side by side, one norm': dict(parallel_block='shared', norm_bias=True, kind=Encoder),
    'side by side, checkpoints': dict(parallel_block='shared', checkpoint_layers=1, depth=3),
    'side by side, checkpoints of three': dict(parallel_block=True, checkpoint_layers=3, depth=3),
    'side by side, repeated': dict(parallel_block='shared', weight_tie_layers=True, use_rmsnorm=True, norm_eps=0.1),
    'other layers': dict(custom_layers=('a', 'a', 'f', 'a', 'f')),
    'repeated': dict(weight_tie_layers=True),
    'no projection': dict(heads=1, attn_dim_head=16),
    'activation': dict(ff_relu_squared=True, ff_post_act_ln=True),
    'checkpoints': dict(checkpoint_layers=True, depth=3),
    'checkpoints of two': dict(checkpoint_layers=2, depth=3, rotary_pos_emb=True),
}


@pytest.mark.parametrize('training', [True, False], ids=['training', 'eval'])
@pytest.mark.parametrize('flags', PLAIN.values(), ids=PLAIN)
def test_the_layers_written_out_are_the_layers(flags, training, runs):
    net, x = stack(**flags).train(training), tokens(2, 5, 16)
    own = passed(net, x)
    assert runs
    assert_same(own, ordinary(passed, net, x))
    with torch.no_grad():
        first, wanted = net(x), ordinary(net, x)  # with a bias that learns, torch takes another kernel above
        assert_same([first, net(x)], [wanted, wanted])  # the second reads sums that the first has kept
    count = len(runs)
    with torch.autocast('cpu', torch.bfloat16):
        assert_same(passed(net, x), ordinary(passed, net, x))
        with torch.no_grad():
            assert_same([net(x)], [ordinary(net, x)])
    net, x = net.double(), x.detach().double().requires_grad_()
    assert_same(passed(net, x), ordinary(passed, net, x))
    assert len(runs) > count + 1


@pytest.mark.parametrize('shape', [(2, 1, 16), (1, 5, 16), (2, 0, 16), (0, 4, 16)], ids=str)
@pytest.mark.parametrize('flags', [{}, dict(rotary_pos_emb=True), dict(kind=Encoder)], ids=str)
def test_any_number_of_rows_and_tokens(shape, flags, runs):
    net, x = stack(**flags), tokens(*shape)
    assert_same(passed(net, x), ordinary(passed, net, x))
    assert runs


def test_long_sequences(runs):
    """So long that attention runs without forming scores."""
    net, x = stack(depth=1, rotary_pos_emb=True), tokens(1, 1100, 16)
    assert_same(passed(net, x), ordinary(passed, net, x))
    assert runs


def test_orders_of_a_call(runs):
    net, x = stack(), tokens()
    for inputs in (dict(layers_execute_order=(2, 3, 0, 1, 0)), dict(repeat_blocks=(0, 3))):
        own = net(x, **inputs)
        assert len(runs) == 1
        assert torch.equal(own, ordinary(net, x, **inputs)) and not torch.equal(own, net(x))
        runs.clear()


def test_a_norm_of_ones_own_where_one_is_borrowed(runs):
    net, x = stack(parallel_block='shared'), tokens()
    net.layers[1][0][0] = nn.LayerNorm(16, bias=False)
    nn.init.normal_(net.layers[1][0][0].weight)
    assert_same(passed(net, x), ordinary(passed, net, x))
    assert not runs


@pytest.mark.parametrize('scale', [1.0, 2.0, None])
def test_angles_given_by_the_caller(scale, runs):
    net, x = stack(rotary_pos_emb=True), tokens()
    given = torch.randn(1, 9, 4, generator=torch.Generator().manual_seed(2)), scale
    assert_same(passed(net, x, rotary_pos_emb=given), ordinary(passed, net, x, rotary_pos_emb=given))
    assert len(runs) == (scale != 2.0)


class Louder(StackFeature):
    louder = flag(False, 'twice the stream before a branch')

    def read(self, x, layer, call):
        return 2 * x


ACTING = {
    'xpos': dict(rotary_xpos=True),
    'memory keys': dict(attn_num_mem_kv=1),
    'top-k': dict(attn_sparse_topk=2),
    'gate': dict(attn_gate_values=True),
    'window': dict(attn_max_attend_past=4),
    'shift': dict(shift_tokens=1),
    'reinject': dict(reinject_input=True),
    'residual scale': dict(scale_residual=True),
    'constant scale': dict(scale_residual_constant=0.5),
    'gru': dict(gate_residual=True),
    'streams': dict(num_residual_streams=2),
    'own feature': dict(features=(*STACK, Louder), louder=True),
}
OTHERS = ACTING | {
    'formula': dict(attn_flash=False),
    'value heads': dict(attn_value_dim_head=4),
    'across': dict(cross_attend=True),
    'attention dropout': dict(attn_dropout=0.5),
    'feedforward dropout': dict(ff_dropout=0.5),
}


@pytest.mark.parametrize('flags', OTHERS.values(), ids=OTHERS)
def test_other_stacks_take_the_ordinary_way(flags, runs):
    net, inputs = stack(**flags).train(), {'context': tokens(2, 3, 16)} if 'cross_attend' in flags else {}
    net(tokens(), **inputs)
    assert not runs


SEEN = {
    'mask': dict(mask=torch.arange(9) < torch.tensor([[9], [4]])),
    'holes': dict(mask=torch.arange(9) % 2 == torch.tensor([[0], [1]])),
    'nothing is real': dict(mask=torch.zeros(2, 9) > 0),
    'start': dict(seq_start_pos=torch.tensor([0, 3])),
    'both': dict(seq_start_pos=torch.tensor([2, 0]), mask=torch.arange(9) < torch.tensor([[9], [4]])),
}


@pytest.mark.parametrize(
    'name', ['default', 'encoder', 'kv heads', 'alibi', 't5', 'value residual', 'rms norm of heads', 'no projection']
)
def test_what_masks_hide(name, runs):
    net, x = stack(**PLAIN[name]), tokens()
    for words, inputs in SEEN.items():
        runs.clear()
        assert_same(passed(net, x, **inputs), ordinary(passed, net, x, **inputs))
        assert len(runs) == 1, words
        with torch.no_grad():
            hidden = net(x, **inputs)
            assert not torch.equal(hidden, net(x)), words
            assert_same([hidden], [ordinary(net, x, **inputs)])


def test_scores_that_are_too_many_to_be_held(monkeypatch, runs):
    monkeypatch.setattr(rows, 'LARGE', dict.fromkeys(('cpu', 'cuda'), 2 * 4 * 9 * 9 - 1))
    for flags, inputs in ((dict(alibi_pos_bias=True), {}), ({}, SEEN['mask'])):
        net, x = stack(**flags), tokens()
        assert_close(net(x, **inputs), ordinary(net, x, **inputs))
        assert not runs


INPUTS = {
    'attn_mask': dict(attn_mask=torch.ones(9, 9).tril() > 0),
    'kv mask': dict(self_attn_kv_mask=torch.arange(9) < torch.tensor([[9], [4]])),
    'bias': dict(attn_bias=torch.randn(9, 9)),
    'not causal': dict(causal=False),
    'hiddens': dict(return_hiddens=True),
    'memories': dict(mems=[torch.randn(2, 3, 16)] * 2),
    'documents': dict(document_ids=torch.tensor([[0] * 5 + [1] * 4] * 2)),
    'more keys': dict(self_attn_additional_kv=[(torch.randn(2, 4, 3, 8), torch.randn(2, 4, 3, 8))] * 2),
    'deep embeds': dict(deep_embeds_and_ids=(torch.randn(7, 2, 16), torch.randint(0, 7, (2, 9)))),
    'between blocks': dict(transform_block_inputs={2: lambda x: x + 1}),
}


@pytest.mark.parametrize('inputs', INPUTS.values(), ids=INPUTS)
def test_inputs_that_layers_see_take_the_ordinary_way(inputs, runs):
    net, x = stack(), tokens()
    with_input = net(x, **inputs)
    assert not runs
    if 'return_hiddens' not in inputs:
        assert not torch.equal(with_input, net(x)) or 'attn_mask' in inputs
    _, past = stack()(x, return_hiddens=True)
    runs.clear()
    net(torch.cat((x, x), dim=1), cache=past)
    assert not runs


class Twice(nn.Linear):
    def forward(self, x):
        return 2 * super().forward(x)


class Doubled(nn.Module):
    def forward(self, weight):
        return 2 * weight


def twice(linear):
    new = Twice(linear.in_features, linear.out_features, bias=linear.bias is not None)
    new.load_state_dict(linear.state_dict())
    return new


def as_plain_tensor(module, name):
    """As a tensor that is no parameter, such as forward-mode differentiation wants it."""
    value = 2 * getattr(module, name).detach()
    delattr(module, name)
    setattr(module, name, value)


def replace(module, name, make):
    setattr(module, name, make(getattr(module, name)))


CHANGES = {
    'a hook': lambda a, f: a.to_v.register_forward_hook(lambda m, args, out: 2 * out),
    'a hook before': lambda a, f: a.to_v.register_forward_pre_hook(lambda m, args: (2 * args[0],)),
    'a hook of the branch': lambda a, f: a.register_forward_hook(lambda m, args, out: (2 * out[0], out[1])),
    'a hook of the operator': lambda a, f: a.attend.register_forward_hook(lambda m, args, out: (2 * out[0], out[1])),
    'a hook of the feedforward': lambda a, f: f.register_forward_hook(lambda m, args, out: 2 * out),
    'another linear layer': lambda a, f: replace(a, 'to_v', twice),
    'another inner layer': lambda a, f: f.ff[0].__setitem__(0, twice(f.ff[0][0])),
    'a forward of its own': lambda a, f: replace(a.to_v, 'forward', lambda old: lambda x: 2 * old(x)),
    'a branch with its own': lambda a, f: replace(f, 'forward', lambda old: lambda x, **rest: 2 * old(x, **rest)),
    'parametrized': lambda a, f: nn.utils.parametrize.register_parametrization(a.to_v, 'weight', Doubled()),
    'no parameter': lambda a, f: as_plain_tensor(a.to_v, 'weight'),
    'another parameter': lambda a, f: replace(a.to_v, 'weight', lambda w: nn.Parameter(2 * w)),
    'in place': lambda a, f: a.to_v.weight.data.mul_(2),
    'of the norm, in place': lambda a, f: a.norms[0].gamma.data.mul_(2),
    'another gain': lambda a, f: replace(a.norms[0], 'gamma', lambda w: nn.Parameter(2 * w)),
}


@pytest.mark.parametrize('change', CHANGES.values(), ids=CHANGES)
@pytest.mark.parametrize('gradients', [True, False], ids=['gradients', 'none'])
def test_what_users_do_to_a_model_counts(change, gradients):
    """Each change is made between two passes, and acts in the second as it does in the ordinary way."""
    net, x = stack(), tokens()
    attn, ff = net.layers[0][1], net.layers[1][1]
    object.__setattr__(attn, 'norms', net.layers[0][0])
    with torch.set_grad_enabled(gradients):
        before = net(x)
        change(attn, ff)
        after = net(x)
        assert torch.equal(after, ordinary(net, x))
        assert not torch.equal(after, before)


@pytest.mark.parametrize('name', ['norm', 'linear'])
def test_tensors_in_the_place_of_parameters(name, runs):
    """Before the first pass too, as for forward-mode differentiation."""
    net, x = stack(), tokens()
    module, parameter = {'norm': (net.layers[0][0][0], 'gamma'), 'linear': (net.layers[1][1].ff[2], 'weight')}[name]
    as_plain_tensor(module, parameter)
    assert torch.equal(net(x), ordinary(net, x)) and not runs


@pytest.mark.parametrize('flags', [{}, dict(use_rmsnorm=True), dict(attn_qk_rmsnorm=True)], ids=str)
def test_gains_that_are_no_longer_alike(flags, runs):
    """Of another dtype in one layer, of a kind of tensor of its own, shared, changed behind torch's back."""

    class Logged(torch.Tensor):
        seen = 0

        @classmethod
        def __torch_function__(cls, function, types, args=(), kwargs=None):
            Logged.seen += function in (torch.stack, torch.cat)
            return super().__torch_function__(function, types, args, kwargs or {})

    def changed(change):
        net, x = stack(**flags, depth=3), tokens().detach()
        with torch.no_grad():
            net(x)
            change([m for m in net.modules() if type(m).__name__.endswith('Norm')][:-1])
            assert_same([net(x)], [ordinary(net, x)])

    def own_kind(norms):
        for norm in norms:
            name, parameter = next(iter(norm._parameters.items()))
            norm._parameters[name] = nn.Parameter(parameter.detach().as_subclass(Logged))

    changed(
        lambda norms: next(n for n in (*norms, nn.Identity()) if type(n) is not LayerNorm).bfloat16()
    )  # of mixed dtypes
    changed(lambda norms: [p.data.mul_(2.0) for p in norms[1].parameters()])
    changed(
        lambda norms: vars(norms[-1]).update(
            _parameters=next(m for m in norms if type(m) is type(norms[-1]))._parameters
        )
    )
    changed(own_kind)
    assert not Logged.seen and runs


@pytest.mark.parametrize('kind', [core.Attention, core.FeedForward, core.Layer, nn.Linear, nn.GELU], ids=str)
def test_a_replaced_forward_of_a_class_counts(kind, monkeypatch):
    net, x, old = stack(), tokens(), kind.forward
    before = net(x)
    monkeypatch.setattr(kind, 'forward', lambda self, *args, **kwargs: 2 * old(self, *args, **kwargs))
    after = net(x)
    assert torch.equal(after, ordinary(net, x)) and not torch.equal(after, before)


def test_global_hooks_see_every_module():
    net, x, seen = stack(), tokens(), []
    net(x)
    handle = nn.modules.module.register_module_forward_hook(lambda m, args, out: seen.append(m))
    net(x)
    handle.remove()
    assert net.layers[0][1].to_q in seen and net.layers[1][1] in seen


def test_dropout_where_it_acts(runs):
    """Also where one module alone is in training, as for estimates of uncertainty."""
    net, x = stack(attn_dropout=0.5, ff_dropout=0.5).eval(), tokens()
    assert torch.equal(net(x), ordinary(net, x)) and len(runs) == 1
    dropout = next(m for m in net.modules() if type(m) is nn.Dropout)
    dropout.train()
    assert not torch.equal(net(x), net(x)) and len(runs) == 1
    dropout.eval()
    net.layers[0][1].train()
    assert not torch.equal(net(x), net(x)) and len(runs) == 1


def test_dropout_behind_branches_rests_in_evaluation(runs):
    net, x = stack(attn_sublayer_dropout=0.5, ff_sublayer_dropout=0.5).eval(), tokens()
    assert torch.equal(net(x), ordinary(net, x)) and len(runs) == 1
    for branch in (net.layers[0][1], net.layers[1][1]):
        branch.train()
        assert not torch.equal(net(x), net(x)) and len(runs) == 1
        branch.eval()
    assert torch.equal(net(x), ordinary(net, x))
    assert not torch.equal(net.train()(x), net(x)) and len(runs) == 1


# torch runs its kernel once per set of parameters, and scripts its own rules: it says so
@pytest.mark.filterwarnings('ignore')
def test_transforms_of_functions(runs):
    net, x = stack().double(), tokens().double()
    params = {name: p.detach() for name, p in net.named_parameters()}

    def run(params, x):
        return torch.func.functional_call(net, params, (x,))

    stacked = {name: torch.stack((p, 2 * p)) for name, p in params.items()}
    both = torch.vmap(run, (0, None))(stacked, x)
    assert runs
    assert torch.allclose(both[0], net(x), atol=1e-12)
    twice = {name: 2 * p for name, p in params.items()}
    assert torch.allclose(both[1], run(twice, x), atol=1e-12)
    with torch.no_grad():  # nothing of other parameters is kept
        assert torch.allclose(net(x), both[0], atol=1e-12)
        masks = torch.arange(9) < torch.tensor([[[9], [4]], [[2], [9]]])
        masked = torch.vmap(lambda mask: net(x, mask=mask))(masks)
        assert torch.allclose(masked[1], net(x, mask=masks[1]), atol=1e-12)
    math = nn.attention.sdpa_kernel(nn.attention.SDPBackend.MATH)
    with math:
        _, tangent = torch.func.jvp(lambda x: run(params, x), (x.detach(),), (torch.ones_like(x),))
    near, far = (run(params, x.detach() + step * torch.ones_like(x)) for step in (-1e-5, 1e-5))
    assert torch.allclose(tangent, (far - near) / 2e-5, atol=1e-6)


@pytest.mark.costly
@pytest.mark.filterwarnings('ignore')  # torch advises other ways
@pytest.mark.parametrize('flags', some(dict(rotary_pos_emb=True), {}), ids=str)
def test_traces(flags, runs):
    net, x = stack(**flags), tokens().detach()
    traced = torch.jit.trace(net, (x,), check_trace=False)
    assert not runs
    torch.jit.trace(net, (x,))  # traces again, and refuses another graph
    assert torch.allclose(traced(x), net(x), atol=1e-5)
    with torch.no_grad():
        assert torch.allclose(make_fx(lambda x: net(x))(x)(x), net(x), atol=1e-5)


@pytest.mark.costly
def test_copies_and_garbage():
    net, x = stack(), tokens()
    net(x)
    other = copy.deepcopy(net)
    assert torch.equal(pickle.loads(pickle.dumps(net))(x), net(x))
    with torch.no_grad():
        for p in other.parameters():
            p.mul_(2)
    assert not torch.equal(other(x), net(x)) and torch.equal(other(x), ordinary(other, x))
    gone = weakref.ref(other)
    del other
    gc.collect()
    assert gone() is None


def test_a_shallow_copy_runs_its_own_layers():
    """As `nn.DataParallel` makes them: other modules are put into them afterwards."""
    net, x = stack(), tokens()
    net(x)
    other = copy.deepcopy(net)
    with torch.no_grad():
        for p in other.parameters():
            p.mul_(2)
    for replica in (net._replicate_for_data_parallel(), copy.copy(net)):
        replica._modules = dict(other._modules)
        assert torch.equal(replica(x), other(x)) and not torch.equal(replica(x), net(x))


def test_another_class_of_a_module_is_seen():
    class Doubled(torch.nn.Linear):
        def forward(self, x):
            return 2 * super().forward(x)

    net, x = stack(), tokens()
    before = net(x)
    net.layers[0][1].to_v.__class__ = Doubled
    assert not torch.allclose(net(x), before) and torch.equal(net(x), ordinary(net, x))


def test_a_training_step_of_a_model(runs):
    """A few steps of an optimiser, written out and in the ordinary way, end at the same weights."""

    def train():
        torch.manual_seed(0)
        net = TransformerWrapper(num_tokens=11, max_seq_len=16, attn_layers=Decoder(dim=16, depth=2, heads=2))
        optimiser, x = torch.optim.Adam(net.parameters(), 1e-2), torch.randint(0, 11, (2, 12))
        for _ in range(4):
            F.cross_entropy(net(x[:, :-1]).flatten(0, 1), x[:, 1:].flatten()).backward()
            optimiser.step()
            optimiser.zero_grad()
            net.eval()
            with torch.no_grad():
                net(x)
            net.train()
        return [p.detach() for p in net.parameters()]

    own = train()
    assert len(runs) == 8
    assert_same(own, ordinary(train))
