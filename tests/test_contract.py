"""What may be done to a built model at any time between two calls, and is seen by the next one.

The list is that of `docs/contributing.md`. Each change comes between two passes, and has the numbers of a model whose
weights say the same.
"""

import copy
import gc
import pickle
import threading
import weakref

import pytest
import torch
from oracles import assert_close, randomised
from sweeps import some
from torch import nn
from torch.fx.experimental.proxy_tensor import make_fx

from x_transformers import AutoregressiveWrapper, Decoder, TransformerWrapper, x_transformers as core
from x_transformers.x_transformers import Attention, FeedForward, Layer, Residual


def stack(kind=Decoder, **flags):
    torch.manual_seed(0)
    net = kind(**{'dim': 16, 'depth': 2, 'heads': 4, 'attn_dim_head': 8, 'verbose': False, **flags})
    return randomised(net).double()


def tokens(*shape):
    shape = shape or (2, 9, 16)
    generator = torch.Generator().manual_seed(1)
    return torch.randn(*shape, generator=generator, dtype=torch.double, requires_grad=True)


class Twice(nn.Linear):
    def forward(self, x):
        return 2 * super().forward(x)


class Doubled(nn.Module):
    def forward(self, weight):
        return 2 * weight


def twice(linear):
    new = Twice(linear.in_features, linear.out_features, bias=linear.bias is not None).to(linear.weight)
    new.load_state_dict(linear.state_dict())
    return new


def as_plain_tensor(module, name):
    """As a tensor that is no parameter, such as forward-mode differentiation wants it."""
    value = 2 * getattr(module, name).detach()
    delattr(module, name)
    setattr(module, name, value)


def first_twice(out):
    return (2 * out[0], *out[1:]) if isinstance(out, tuple) else 2 * out


def replace(module, name, make):
    setattr(module, name, make(getattr(module, name)))


# what is done, and the parameters that are twice as large in a model of the same numbers: of the values, of the output
# of the attention, of the output of the feedforward
VALUES, OUT, INNER, FF = (
    ('to_v.weight',),
    ('to_out.weight',),
    ('ff.0.0.weight', 'ff.0.0.bias'),
    ('ff.2.weight', 'ff.2.bias'),
)
CHANGES = {
    'a hook': (lambda a, f: a.to_v.register_forward_hook(lambda m, args, out: 2 * out), VALUES),
    'a hook with keywords': (
        lambda a, f: a.register_forward_pre_hook(lambda m, args, kw: ((args[0],), kw), with_kwargs=True), (),
    ),
    'a hook before': (lambda a, f: a.to_v.register_forward_pre_hook(lambda m, args: (2 * args[0],)), VALUES),
    'a hook of the branch': (lambda a, f: a.register_forward_hook(lambda m, args, out: (2 * out[0], out[1])), OUT),
    'a hook of the operator': (
        lambda a, f: a.attend.register_forward_hook(lambda m, args, out: (2 * out[0], out[1])), OUT,
    ),
    'a hook of the feedforward': (lambda a, f: f.register_forward_hook(lambda m, args, out: 2 * out), FF),
    'another linear layer': (lambda a, f: replace(a, 'to_v', twice), VALUES),
    'another inner layer': (lambda a, f: f.ff[0].__setitem__(0, twice(f.ff[0][0])), INNER),
    'a forward of its own': (lambda a, f: replace(a.to_v, 'forward', lambda old: lambda x: 2 * old(x)), VALUES),
    'an attention with its own': (
        lambda a, f: replace(a, 'forward', lambda old: lambda x, **rest: first_twice(old(x, **rest))), OUT,
    ),
    'a feedforward with its own': (
        lambda a, f: replace(f, 'forward', lambda old: lambda x, **rest: 2 * old(x, **rest)), FF,
    ),
    'another class of the attention': (lambda a, f: setattr(a, '__class__', TwiceAttention), OUT),
    'another class of the feedforward': (lambda a, f: setattr(f, '__class__', TwiceFeedForward), FF),
    'another class of a linear layer': (lambda a, f: setattr(a.to_v, '__class__', Twice), VALUES),
    'parametrized': (lambda a, f: nn.utils.parametrize.register_parametrization(a.to_v, 'weight', Doubled()), VALUES),
    'no parameter': (lambda a, f: as_plain_tensor(a.to_v, 'weight'), VALUES),
    'another parameter': (lambda a, f: replace(a.to_v, 'weight', lambda w: nn.Parameter(2 * w)), VALUES),
    'in place': (lambda a, f: a.to_v.weight.data.mul_(2), VALUES),
    'split heads': (lambda a, f: setattr(a, 'split_v_heads', Split(a.split_v_heads)), VALUES),
    'merged heads': (lambda a, f: setattr(a, 'merge_heads', Split(a.merge_heads)), OUT),
}  # fmt: skip


class TwiceAttention(Attention):
    def forward(self, *args, return_intermediates=False, **kwargs):
        return first_twice(super().forward(*args, return_intermediates=return_intermediates, **kwargs))


class TwiceFeedForward(FeedForward):
    def forward(self, *args, **kwargs):
        return 2 * super().forward(*args, **kwargs)


class Split(nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, t):
        return 2 * self.inner(t)


def doubled(net, names):
    """The same model, in which these parameters of the first block are twice as large."""
    twin = copy.deepcopy(net)
    attn, ff = twin.layers[0][1], twin.layers[1][1]
    with torch.no_grad():
        for name in names:
            (ff if name.startswith('ff') else attn).get_parameter(name).mul_(2)
    return twin


@pytest.mark.parametrize('flags', [{}, dict(rotary_pos_emb=True, alibi_pos_bias=True)], ids=['default', 'biased'])
@pytest.mark.parametrize('change, names', CHANGES.values(), ids=CHANGES)
def test_what_users_do_to_a_model_counts(change, names, flags):
    net, x, mask = stack(**flags), tokens(), torch.arange(9) < torch.tensor([[9], [5]])
    twin = doubled(net, names)
    before = net(x, mask=mask)
    change(net.layers[0][1], net.layers[1][1])
    after = net(x, mask=mask)
    assert_close(after, twin(x, mask=mask), tolerance=1e-12)
    assert (not names) == torch.equal(after, before)
    wanted = torch.autograd.grad(twin(x).square().sum(), x)[0]
    assert_close(torch.autograd.grad(net(x).square().sum(), x)[0], wanted, tolerance=1e-12)
    with torch.no_grad():
        assert_close(net(x), twin(x), tolerance=1e-12)


@pytest.mark.parametrize('change, names', CHANGES.values(), ids=CHANGES)
def test_what_users_do_to_a_model_counts_in_generation(change, names):
    """Between two calls of `generate`, of which the second decodes with the change."""
    net = TransformerWrapper(num_tokens=11, max_seq_len=32, attn_layers=stack(rotary_pos_emb=True)).double().eval()
    twin = copy.deepcopy(net)
    twin.attn_layers = doubled(net.attn_layers, names)
    ids, options = torch.tensor([[1, 2, 3], [4, 5, 6]]), dict(temperature=0.0)
    own, other = AutoregressiveWrapper(net), AutoregressiveWrapper(twin)
    own.generate(ids, 8, **options)
    change(net.attn_layers.layers[0][1], net.attn_layers.layers[1][1])
    assert torch.equal(own.generate(ids, 8, **options), other.generate(ids, 8, cache_kv=False, **options))


@pytest.mark.parametrize('kind, names', [(Attention, OUT), (FeedForward, FF), (nn.GELU, FF)], ids=str)
def test_a_replaced_forward_of_a_class_counts(kind, names, monkeypatch):
    net, x, old = stack(depth=1), tokens(), kind.forward
    twin = doubled(net, ('ff.2.weight',) if kind is nn.GELU else names)
    net(x)
    wanted = twin(x)

    def forward(self, *args, **kwargs):
        return first_twice(old(self, *args, **kwargs))

    monkeypatch.setattr(kind, 'forward', forward)
    assert_close(net(x), wanted, tolerance=1e-12)


def test_a_branch_of_a_layer_of_ones_own_runs():
    class Louder(Layer):
        def branch(self, x, call, features):
            return 2 * super().branch(x, call, features)

    net, x = stack(), tokens()
    twin = doubled(net, (*OUT, *FF))
    for layer in net.layers[:2]:
        layer.__class__ = Louder
    assert_close(net(x), twin(x), tolerance=1e-12)


def test_what_a_residual_of_ones_own_prepares_is_read():
    """x + branch(2 x) as the residual says, by hand."""

    class Louder(Residual):
        def prepare(self, residual):
            return 2 * residual, residual, {}

    net, x = stack(depth=1, pre_norm_has_final_norm=False), tokens()
    for layer in net.layers:
        layer[2].__class__ = Louder
    (attn_norms, attn, _), (ff_norms, ff, _) = net.layers
    y = x + attn(attn_norms[0](2 * x))
    assert_close(net(x), y + ff(ff_norms[0](2 * y)), tolerance=1e-12)


def test_the_function_that_rotates_is_looked_up_at_each_call(monkeypatch):
    net, x = stack(rotary_pos_emb=True), tokens()
    before, own, seen = net(x), core.apply_rotary_pos_emb, []
    monkeypatch.setattr(core, 'apply_rotary_pos_emb', lambda *args: seen.append(1) or own(*args))
    assert torch.equal(net(x), before) and len(seen) == 4


def test_global_hooks_see_every_module():
    net, x, seen = stack(), tokens(), []
    net(x)
    handle = nn.modules.module.register_module_forward_hook(lambda m, args, out: seen.append(m))
    net(x)
    handle.remove()
    wanted = {m for layer in net.layers for m in (layer, layer[0][0], layer[1], layer[2], *layer[1].children())}
    assert wanted <= set(seen)


def test_dropout_where_it_acts():
    """Also where one module alone is in training, as for estimates of uncertainty."""
    net, x = stack(attn_dropout=0.5, ff_dropout=0.5).eval(), tokens()
    assert torch.equal(net(x), net(x))
    dropout = next(m for m in net.modules() if type(m) is nn.Dropout)
    dropout.train()
    assert not torch.equal(net(x), net(x))
    dropout.p = 0.0
    assert torch.equal(net(x), net(x))
    dropout.eval()
    net.layers[1][1].train()
    assert not torch.equal(net(x), net(x))
    net.eval()
    net.layers[0][1].causal = False
    assert not torch.equal(net(x), stack(attn_dropout=0.5, ff_dropout=0.5).eval()(x))


def test_threads_run_one_model():
    net = stack(rotary_pos_emb=True, alibi_pos_bias=True).eval()
    masks = [torch.arange(9) < torch.tensor([[9], [n]]) for n in range(1, 9)]
    inputs = [tokens().detach() * n for n in range(1, 9)]
    with torch.no_grad():
        wanted = [net(x, mask=mask) for x, mask in zip(inputs, masks, strict=True)]
    found = [None] * len(masks)

    def run(at):
        with torch.no_grad():
            for _ in range(5):
                found[at] = net(inputs[at], mask=masks[at])

    threads = [threading.Thread(target=run, args=(at,)) for at in range(len(masks))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(torch.equal(one, other) for one, other in zip(found, wanted, strict=True))


def test_layers_in_checkpoints_of_the_callers():
    """What a stack settles once for its layers is there again when one of them is computed again."""
    net, x = stack(alibi_pos_bias=True), tokens()
    mask = torch.arange(9) < torch.tensor([[9], [5]])
    wanted = torch.autograd.grad(net(x, mask=mask).square().sum(), (x, *net.parameters()))
    for layer in net.layers:
        own = layer.forward
        layer.forward = lambda *args, own=own: torch.utils.checkpoint.checkpoint(own, *args, use_reentrant=False)
    found = torch.autograd.grad(net(x, mask=mask).square().sum(), (x, *net.parameters()))
    for one, other in zip(found, wanted, strict=True):
        assert_close(one, other, tolerance=1e-12)


# torch runs its kernel once per set of parameters, and scripts its own rules: it says so
@pytest.mark.filterwarnings('ignore')
def test_transforms_of_functions():
    net, x = stack().double(), tokens().double()
    params = {name: p.detach() for name, p in net.named_parameters()}

    def run(params, x):
        return torch.func.functional_call(net, params, (x,))

    stacked = {name: torch.stack((p, 2 * p)) for name, p in params.items()}
    both = torch.vmap(run, (0, None))(stacked, x)
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
def test_traces(flags):
    net, x = stack(**flags), tokens().detach()
    traced = torch.jit.trace(net, (x,), check_trace=False)
    torch.jit.trace(net, (x,))  # traces again, and refuses another graph
    assert torch.allclose(traced(x), net(x), atol=1e-12)
    with torch.no_grad():
        assert torch.allclose(make_fx(lambda x: net(x))(x)(x), net(x), atol=1e-12)


@pytest.mark.costly
def test_copies_and_garbage():
    net, x = stack(), tokens()
    net(x)
    other = copy.deepcopy(net)
    assert torch.equal(pickle.loads(pickle.dumps(net))(x), net(x))
    with torch.no_grad():
        for p in other.parameters():
            p.mul_(2)
    assert not torch.equal(other(x), net(x))
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
