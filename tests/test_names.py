"""Names that other people's code imports, what they compute, and configurations as trainers read them."""

import copy
import functools
import importlib
import inspect
import itertools
import json
import math
import pickle
import random
import subprocess
import sys
import warnings
from contextlib import nullcontext
from pathlib import Path

import einops
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from x_transformers import (
    Attention,
    AttentionPool,
    AutoregressiveWrapper,
    ContinuousTransformerWrapper,
    Decoder,
    Encoder,
    FeedForward,
    MultiInputTransformerWrapper,
    TransformerWrapper,
    ViTransformerWrapper,
    XLAutoregressiveWrapper,
    XTransformer,
    XValTransformerWrapper,
    x_transformers as core,
)
from x_transformers.attend import Attend
from x_transformers.kernels.flex import load_flex
from x_transformers.xm_latent_decoder import XMLatentDecoder

DATA = Path(__file__).parent / 'data'
ROOT = Path(__file__).parents[1]

# names that are a matter of the original's inside, or that do something else here, and why
ELSEWHERE_CALLED = {
    'attend.Attend.flash_attn': 'the kernel is chosen by `choose_kernel`',
    'xl_autoregressive_wrapper.XLAutoregressiveWrapper.init_ttt': 'the inner loop of `TestTimeTraining`',
    'xl_autoregressive_wrapper.XLAutoregressiveWrapper.update_ttt': 'the inner loop of `TestTimeTraining`',
    'recirculation.Recirculation.recirculate': 'takes the state of a pass of its own',
    **dict.fromkeys(
        (
            f'x_transformers.{name}'
            for name in (
                'AttentionResidual.forward',
                'ConcatCombine',
                'ConcatCombine.forward',
                'GatedMultiResidual',
                'GatedMultiResidual.forward',
                'GatedMultiResidual.prepare',
                'HyperConnection.forward',
                'HyperConnection.prepare',
            )
        ),
        'how layers are joined is the business of a stack; weights have the same names',
    ),
}
PLAIN = {'exists', 'default', 'is_empty', 'divisible_by'}  # one or two arguments, whose names differ by module there


def original(name):
    """The lines of a table, `key: words`, indented ones belonging to the key above."""
    table = {}
    for line in (DATA / name).read_text().splitlines():
        if line.startswith('#'):
            continue
        if not line.startswith(' '):
            key, _, line = line.partition(':')
            table[key] = []
        table[key] += line.split()
    return table


SHOWN, CALLED = original('original_names.txt'), original('original_calls.txt')
ORDER = original('original_order.txt')


@pytest.mark.parametrize('module', SHOWN)
def test_every_name_of_the_original_is_there(module):
    found = importlib.import_module(f'x_transformers.{module}'.removesuffix('.__init__'))
    assert [name for name in SHOWN[module] if not hasattr(found, name)] == []
    assert set(SHOWN[module]) <= {*dir(found), 'annotations'}
    with pytest.raises(AttributeError, match='nothing'):
        found.nothing  # noqa: B018


@pytest.mark.parametrize('case', ORDER)
def test_order_of_parameters(case):
    """Optimizers, `parameters_to_vector` and averages of weights go by the order, not by names."""
    model = eval(case, {**vars(importlib.import_module('x_transformers')), 'GRU': nn.GRU})
    assert list(model.state_dict()) == ORDER[case]
    parameters = dict(model.named_parameters())
    assert list(parameters) == [name for name in ORDER[case] if name in parameters]


def test_names_are_looked_up_when_asked_for():
    """einx brings sympy: nobody pays for it who does not ask."""
    dpo = importlib.import_module('x_transformers.dpo')
    assert 'einx' not in vars(dpo) and dpo.einx is importlib.import_module('einx')


def test_names_that_mean_something_else_in_one_module():
    modules = {name: importlib.import_module(f'x_transformers.{name}') for name in SHOWN if name != '__init__'}
    assert {name for name, m in modules.items() if getattr(m, 'random', random.random) is not random.random} == set()
    assert {name for name, m in modules.items() if getattr(m, 'einsum', None) is einops.einsum} == {
        'free_transformer',
        'neo_mlp',
    }
    assert modules['xl_autoregressive_wrapper'].reduce is functools.reduce
    assert modules['recirculation'].LayerNorm is nn.LayerNorm and modules['continuous'].LayerNorm is core.LayerNorm
    logits = torch.arange(10.0)[None]
    kept = {name: m.top_k(logits, 0.7).isfinite().sum().item() for name, m in modules.items() if hasattr(m, 'top_k')}
    assert kept.pop('nonautoregressive_wrapper') == 4 and set(kept.values()) == {7}
    x, mask = torch.tensor([[1.0, 2.0], [3.0, 9.0]]), torch.tensor([[True, False], [True, True]])
    means = {name: m.masked_mean(x, mask).tolist() for name, m in modules.items() if hasattr(m, 'masked_mean')}
    assert means.pop('dpo') == [1, 6] and all(mean == pytest.approx(13 / 3) for mean in means.values())
    logs = {name: m.log(torch.zeros(())).item() for name, m in modules.items() if hasattr(m, 'log')}
    assert logs.pop('nonautoregressive_wrapper') == pytest.approx(math.log(1e-10))
    assert all(value == pytest.approx(math.log(1e-20)) for value in logs.values())
    tuples = {name for name, m in modules.items() if hasattr(m, 'cast_tuple') and m.cast_tuple([1]) == [1]}
    assert tuples == {'xm_latent_decoder'} and core.cast_tuple(1, depth=2) == (1, 1)
    made = {name for name, m in modules.items() if hasattr(m, 'default') and m.default(None, dict) == {}}
    assert made == {'x_transformers', 'discover_wrapper', 'continuous', 'multi_input', 'xval'}
    assert isinstance(modules['continuous'].default(None, nn.GELU()), nn.GELU)
    assert core.default(None, None, 4) == 4 == modules['xm_latent_decoder'].default(None, 4, 5)
    assert {m.default(None, 3) for m in modules.values() if hasattr(m, 'default')} == {3}
    vector = torch.tensor([3e-8, 4e-8])
    assert modules['gpt_lejepa'].l2norm(vector).tolist() == pytest.approx([0.03, 0.04])
    assert modules['next_latent_wrapper'].l2norm(vector).tolist() == pytest.approx([0.6, 0.8])


def parameters(function):
    return inspect.signature(function).parameters.values()


@pytest.mark.parametrize('module', [module for module in SHOWN if module != '__init__'])
def test_calls_of_the_original_have_their_parameters(module):
    """By name, in the same order where they may be given without one; and no other parameter is asked for."""
    found = importlib.import_module(f'x_transformers.{module}')
    for call, theirs in CALLED.items():
        home, _, name = call.partition('.')
        if home != module or call in ELSEWHERE_CALLED or name in PLAIN:
            continue
        places = list(itertools.takewhile(lambda name: name[0] != '*', theirs))
        free, theirs = '**' in theirs or '*' in theirs[-1:], [name for name in theirs if name[0] != '*']
        ours = [p for p in parameters(functools.reduce(getattr, name.split('.'), found)) if p.name != 'self']
        named = {p.name for p in ours}
        if not any(p.kind is p.VAR_KEYWORD for p in ours):
            assert set(theirs) <= named, call
        in_order = [p.name for p in ours if p.kind is p.POSITIONAL_OR_KEYWORD]
        assert [name for name, there in zip(in_order, places, strict=False) if name != there] == [], call
        wanted = {p.name for p in ours if p.default is p.empty and p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL)}
        assert free or wanted <= set(theirs), call


def test_exceptions_are_of_the_table():
    assert set(ELSEWHERE_CALLED) <= set(CALLED)


def test_what_small_functions_compute():
    x = torch.tensor([[1.0, 2.0, -1.0], [0.0, 3.0, 1.0]])
    mask = torch.tensor([[True, False, True], [False, False, False]])
    assert core.rotate_half(torch.arange(8).view(2, 4)).tolist() == [[-1, 0, -3, 2], [-5, 4, -7, 6]]
    assert core.masked_mean(x, mask) == 0 and core.masked_mean(x, mask, dim=-1).tolist() == [0, 0]
    torch.testing.assert_close(core.masked_mean(x, torch.tensor([True, False])), torch.tensor(2 / 3))
    assert core.lens_to_mask(torch.tensor([1, 3])).tolist() == [[True, False, False], [True, True, True]]
    torch.testing.assert_close(core.calc_entropy(x), torch.distributions.Categorical(logits=x).entropy())
    torch.testing.assert_close(core.calc_entropy(x.softmax(-1), is_prob=True), core.calc_entropy(x))
    assert core.calc_entropy(torch.tensor([0.0, 1.0]), is_prob=True) == 0
    torch.testing.assert_close(core.log(torch.tensor([0.0, 2.0])).exp(), torch.tensor([1e-20, 2.0]))
    target = torch.tensor([1, 2])
    torch.testing.assert_close(core.cross_entropy(x.t(), target, class_dim=0), F.cross_entropy(x, target))
    assert core.groupby_prefix_and_trim('a_', {'a_b': 1, 'c': 2}) == ({'b': 1}, {'c': 2})
    assert core.maybe(lambda t: t + 1)(None) is None and core.maybe(lambda t: t + 1)(1) == 2 and core.maybe()(4) == 4
    assert core.first([3, 4]) == 3 and core.first([]) is None and core.is_empty([]) and core.divisible_by(6, 3)
    assert core.max_neg_value(x) == torch.finfo(torch.float32).min
    assert core.Identity()(x, 1, k=2) is x and core.LinearNoBias(2, 3).bias is None
    linear = nn.Linear(2, 2)
    core.init_zero_(linear)
    assert not linear.weight.any() and not linear.bias.any()


def test_what_functions_around_attention_compute():
    from x_transformers import attend

    assert attend.at_most_one_of(True, False) and not attend.at_most_one_of(True, 0, True)
    assert attend.compact([0, None, 2]) == [0, 2]
    assert attend.create_causal_mask(2, 4, 'cpu').tolist() == [[False, False, False, True], [False] * 4]
    calls = []
    first = attend.once(calls.append)
    assert [first(1), first(2)] == [None, None] and calls == [1]
    q, k = torch.randn(1, 2, 3, 4).double(), torch.randn(1, 2, 5, 4).double()
    wanted = (q[:, :, :, None] - k[:, :, None]).square().sum(dim=-1)
    torch.testing.assert_close(attend.qk_l2_dist_squared(q, k), wanted)
    torch.testing.assert_close(attend.qk_l2_dist_squared(q, k[:, 1])[:, 1], wanted[:, 1])
    sim, gate = torch.randn(1, 2, 3, 5).double(), torch.randn(1, 3, 5).double()
    for given, votes in ((None, sim[:, 0]), (gate, gate)):
        for start in (True, False):
            out = attend.selective_attn(sim, given, no_mask_sos=start)
            for head in range(2):
                for i in range(3):
                    for j in range(5):  # two keys in front; query i is key i + 2
                        heard = [votes[0, e, j].relu() for e in range(i) if j >= 2 + start and e != j - 2]
                        torch.testing.assert_close(out[0, head, i, j], sim[0, head, i, j] - sum(heard))
    logits, values = torch.randn(3, 5).double().requires_grad_(), torch.randn(3, 5).double()
    soft = torch.autograd.grad(((logits / 2).softmax(dim=-1) * values).sum(), logits)[0]
    for row, out in zip(logits, attend.sparse_topk_attn(logits, 2), strict=True):
        places = row.topk(2).indices
        torch.testing.assert_close(out[places], row[places].softmax(dim=0))
        assert out.count_nonzero() == 2
    for straight in (
        attend.one_hot_straight_through(logits, temperature=2.0),
        attend.sparse_topk_attn(logits, 2, 2.0, straight_through=True),
    ):
        torch.testing.assert_close(torch.autograd.grad((straight * values).sum(), logits)[0], soft)
    assert attend.one_hot_straight_through(logits).argmax(dim=-1).equal(logits.argmax(dim=-1))
    x = torch.linspace(-4, 4, 9).double()
    clamped = 3 * torch.tanh(x / 3)
    torch.testing.assert_close(core.softclamp_gelu(x, 3.0), clamped * (1 + torch.erf(x / 2**0.5)) / 2)
    torch.testing.assert_close(core.softclamp_silu(x, 3.0), clamped / (1 + (-x).exp()))
    angles = torch.randn(1, 5, 4).double()
    turned = core.apply_polar_pos_emb(q, angles)
    wanted = F.softplus(q) * torch.exp(1j * angles[:, None, -3:])
    torch.testing.assert_close(turned, torch.cat((wanted.real, wanted.imag), dim=-1))
    assert core.resolve_repeat_blocks_to_layer_execute_order(((1, 2),), 3, 2) == (0, 1, 2, 3, 2, 3, 4, 5)


def test_what_functions_of_trees_and_modules_do():
    from x_transformers import full_bandwidth, xl_autoregressive_wrapper

    x = torch.ones(2, requires_grad=True) * 2
    tree = {'a': [x, 3], 'b': None}
    assert not core.detach_all(tree)['a'][0].requires_grad and core.detach_all(tree)['a'][1] == 3
    leaves, back = core.tree_flatten_with_inverse({'a': [1, 2], 'b': 3})
    assert leaves == [1, 2, 3] and back([4, 5, 6]) == {'a': [4, 5], 'b': 6}
    assert core.safe_cat([None, None]) is None and core.safe_cat([None, x, x]).tolist() == [2] * 4
    assert core.slice_right_at_dim(torch.arange(4), 0).tolist() == []
    assert [core.slice_right_at_dim(torch.arange(4), n).tolist() for n in (1, 9)] == [[3], [0, 1, 2, 3]]
    with torch.autocast('cpu', dtype=torch.bfloat16):
        assert core.disable_autocast(lambda t: t @ t.mT)(torch.ones(2, 2)).dtype == torch.float32
    assert core.Lambda(lambda t, more=0: t + more)(1, more=2) == 3 and len(core.Sequential(None, nn.GELU())) == 1
    net = nn.Sequential(nn.Dropout(), nn.Sequential(nn.Linear(1, 1), nn.GELU()))
    net[0].eval()
    with full_bandwidth.temp_eval(net) as inside:
        assert inside is net and not any(m.training for m in net.modules())
    assert net.training and net[1].training and not net[0].training
    assert full_bandwidth.temp_eval(lambda self, x: (self.training, x))(net, 3) == (False, 3)
    xl_autoregressive_wrapper.set_module_by_path(net, '1.1', nn.SiLU())
    assert isinstance(xl_autoregressive_wrapper.get_module_by_path(net, '1.1'), nn.SiLU)
    assert xl_autoregressive_wrapper.module_device(nn.GELU()) is None
    assert xl_autoregressive_wrapper.repeat_batch(torch.arange(3), 2).tolist() == [[0, 1, 2]] * 2
    ids = torch.tensor([[1, 2, 3, 2], [4, 5, 6, 7]])
    for inclusive, first in ((True, [True, True, False, False]), (False, [True, False, False, False])):
        assert xl_autoregressive_wrapper.mask_after(ids, 2, inclusive=inclusive).tolist() == [first, [True] * 4]
    packed, inverse = full_bandwidth.pack_with_inverse([torch.ones(2, 3, 4), torch.zeros(5, 4)], '* d')
    assert packed.shape == (11, 4) and [t.shape for t in inverse(packed)] == [(2, 3, 4), (5, 4)]
    assert full_bandwidth.cast_tensor([1, 2], dtype=torch.float64).dtype == torch.float64
    assert full_bandwidth.cast_tensor(None) is None
    with pytest.raises(TypeError, match='`t` got str'):
        full_bandwidth.cast_tensor('a', error=True)
    many = full_bandwidth.maybe_return('a', 'b')(lambda: (1, 2, 3))
    assert many() == 1 and many(return_all=True)._asdict() == {'tokens': 1, 'a': 2, 'b': 3}
    assert full_bandwidth.exclusive_cumsum(torch.tensor([1, 2, 3])).tolist() == [0, 1, 3]
    always, unlike = pickle.loads(pickle.dumps((core.always(3), core.not_equals(3))))
    assert always(1, k=2) == 3 and unlike(4) and not unlike(3)


def test_what_functions_of_wrappers_compute():
    from x_transformers import next_latent_wrapper

    modules = [importlib.import_module(f'x_transformers.{name}') for name in SHOWN if name != '__init__']
    wrappers = {name: getattr(m, name) for m in reversed(modules) for name in dir(m)}
    x, mask = torch.arange(12.0).view(2, 3, 2), torch.tensor([[True, False, True], [False, False, False]])
    assert wrappers['batch_masked_mean'](x, mask).tolist() == [5, 0]
    means, variances = torch.zeros(20000), torch.full((20000,), 4.0)
    draws = wrappers['sample_from_mean_variance'](means, variances, temperature=0.5)
    assert draws.std().item() == pytest.approx(1, abs=0.03)
    pair, target = torch.stack((torch.randn(4), torch.rand(4) + 0.1)), torch.randn(4)
    wanted = F.gaussian_nll_loss(pair[0], target, pair[1], reduction='none')
    torch.testing.assert_close(wrappers['GaussianNLL']()(pair, target), wanted)
    picked = wrappers['batched_index_select'](x, torch.tensor([[0, 2], [1, 1]]))
    assert picked.tolist() == [[x[0, 0].tolist(), x[0, 2].tolist()], [x[1, 1].tolist()] * 2]
    logits, ids = torch.randn(2, 4, 7), torch.randint(0, 7, (2, 4))
    found = wrappers['log_prob_from_model_and_seq'](lambda seq: logits[:, : seq.shape[1]], ids)
    wanted = -F.cross_entropy(logits[:, :-1].mT, ids[:, 1:], reduction='none')
    torch.testing.assert_close(found, wanted)
    assert wrappers['and_masks']([None]) is None
    assert wrappers['maybe_and_mask'](None, mask, ~mask).any().item() is False
    bits = torch.tensor([[0.0, 1.0], [2.0, -60.0]])
    prob = bits.sigmoid()
    wanted = -(prob * prob.log() + (1 - prob) * (1 - prob).clamp(min=1e-30).log()).sum(dim=-1)
    torch.testing.assert_close(wrappers['binary_entropy'](bits), wanted)
    losses = torch.tensor([1.0, 2.0, 3.0])
    torch.testing.assert_close(
        next_latent_wrapper.dynamic_rollout_loss_weights(losses, decay=0.5),
        torch.tensor([0.0, 1.0, 3.0]).mul(-0.5).exp(),
    )
    assert [type(m).__name__ for m in wrappers['MLP'](2, 3, 4, depth=2)] == ['Linear', 'GELU', 'Linear']
    rows = torch.tensor([[1, 2, 3, 4], [5, 6, 7, 8]])
    assert wrappers['flip'](rows, lens=torch.tensor([2, 3])).tolist() == [[2, 1, 3, 4], [7, 6, 5, 8]]
    a, b = (torch.ones(2, requires_grad=True) for _ in range(2))
    sum(t.sum() for t in wrappers['detach_multiple'](a * 2, b * 3)).backward()
    assert a.grad.tolist() == [2, 2] and b.grad.tolist() == [3, 3]
    entropies = torch.tensor([[0.1, 0.2, 0.5, 0.3, 0.9, 0.05]])
    assert wrappers['get_accumulated_threshold_mask'](entropies, 0.6, 0.25).nonzero()[:, 1].tolist() == [3, 4]
    part = wrappers['get_mask_subset_prob'](torch.ones(3, 7, dtype=torch.bool), torch.tensor([[0.1], [0.5], [1.0]]), 2)
    assert part.sum(dim=-1).tolist() == [2, 4, 7]
    assert wrappers['sample_prob'](1.0) and not wrappers['sample_prob'](0.0)
    matrices = torch.randn(2, 3, 5)
    same, applied = wrappers['newtonschulz5'](matrices[0])
    assert same.equal(matrices[0]) and applied is False
    once, applied = wrappers['newtonschulz5'](matrices, steps=1, coefs=(2.0, 0.0, 0.0))
    torch.testing.assert_close(once, 2 * matrices / matrices.norm(dim=(1, 2), keepdim=True))
    assert applied is True


def test_cope_is_what_is_added_to_logits():
    """Linear between the vectors of the counted positions."""
    torch.manual_seed(0)
    cope = core.CoPE(4, 2, 3).double()
    nn.init.normal_(cope.pos_emb)
    q, sim = torch.randn(1, 2, 3, 4).double(), torch.randn(1, 2, 3, 3).double()
    added = cope(q, sim)
    for head in range(2):
        for i in range(3):
            for j in range(3):
                place = sim[0, head, i, j:].sigmoid().sum().clamp(max=2)
                low, high = cope.pos_emb[int(place)], cope.pos_emb[min(int(place) + 1, 2)]
                wanted = q[0, head, i] @ torch.lerp(low, high, place - int(place))
                torch.testing.assert_close(added[0, head, i, j], wanted)
    k = v = torch.randn(1, 2, 3, 4).double()
    logits = q @ k.mT / 2
    torch.testing.assert_close(Attend(cope=cope)(q, k, v)[0], (logits + cope(q, logits)).softmax(dim=-1) @ v)


def test_cached_keys_and_values_of_self_attention_can_be_modified():
    from x_transformers.autoregressive_wrapper import modify_cached_kv

    stack = Decoder(dim=16, depth=1, heads=2, cross_attend=True)
    net = TransformerWrapper(num_tokens=9, max_seq_len=8, attn_layers=stack).eval()
    _, left = net(torch.arange(5)[None], context=torch.randn(1, 4, 16), return_intermediates=True)
    assert modify_cached_kv(left, lambda t: t[..., :3, :]) is None
    assert [[t.shape[-2] for t in pair] for pair in core.get_cached_kvs(left)] == [[3, 3], [4, 4]]


def test_small_modules_take_the_arguments_of_the_original():
    x, state = torch.randn(2, 3, 6), torch.randn(2, 3, 6)
    assert core.Residual(6, True).residual_scale.shape == (6,) and core.GRUGating(6, True).residual_scale.shape == (6,)
    torch.testing.assert_close(core.Residual(6, False, 0.5)(x=x, residual=state), x + state / 2)
    mask = torch.tensor([[True] * 3, [True, False, False]])
    update, (alpha, beta) = core.MVSplitResidualUpdate(6, 0.3, 0.4), (0.3, 0.4)
    out, mean, mean_state = update(x, state, mask=mask)[1], x[1, :1], state[1, :1]
    torch.testing.assert_close(out, state[1] + beta * (x[1] - mean) + alpha * (mean - mean_state))
    tanh = core.DynamicTanh(6, 0.5, 2.0, 0.25, True)
    torch.testing.assert_close(tanh(x), torch.tanh(x / 2) * 2 + 0.25)
    torch.testing.assert_close(core.Scale(0.5)(x), x / 2)
    glu = core.GLU(6, 4, nn.SiLU(), False, True, 1.0, 2.0)
    value, gate = glu.proj(x).chunk(2, dim=-1)
    torch.testing.assert_close(glu(x), 2 * torch.tanh(value / 2) * torch.tanh(gate) * gate.sigmoid())
    q, logits = torch.randn(1, 2, 4, 6), torch.randn(1, 2, 4, 4)
    cope = core.CoPE(6, 2, 3, soft_onehot=True, soft_onehot_temp=2.0)
    nn.init.normal_(cope.pos_emb)
    place = logits.sigmoid().flip(-1).cumsum(dim=-1).flip(-1).clamp(max=2)
    weights = (-(place[..., None] - torch.arange(3)).abs() / 2).softmax(dim=-1)
    torch.testing.assert_close(
        cope(query=q, attn_logits=logits), ((weights @ cope.pos_emb) * q[..., None, :]).sum(dim=-1)
    )
    cope = core.CoPE(6, 2, 3, talking_heads=True)  # later keys count nothing, hidden or not
    nn.init.normal_(cope.pos_emb)
    later = torch.ones(4, 4, dtype=torch.bool).triu(1)
    hidden = cope(q, logits.masked_fill(later, -torch.finfo(torch.float32).max))
    torch.testing.assert_close(cope(q, logits), hidden)


def test_a_model_hands_what_optimisers_want_to_its_stack():
    net = TransformerWrapper(num_tokens=9, max_seq_len=8, attn_layers=Decoder(dim=16, depth=1, heads=2))
    twin = copy.deepcopy(net)
    _, left = net(torch.arange(5)[None], return_intermediates=True)
    net.attn_qk_clip_(left, tau=1e-3)
    twin.attn_layers.attn_qk_clip_(left, tau=1e-3)
    assert torch.equal(net.attn_layers.layers[0][1].to_q.weight, twin.attn_layers.layers[0][1].to_q.weight)


def test_none_for_an_input_that_is_off_is_no_input():
    x, ids = torch.randn(1, 4, 16), torch.arange(4)[None]
    for kind in (Encoder, Decoder):
        stack = kind(dim=16, depth=1, heads=2).eval()
        names = {name for feature in stack.features.catalogue for name in feature.takes}
        assert {'condition', 'deep_embeds', 'in_attn_cond'} & names
        for name in names:
            torch.testing.assert_close(stack(x, **{name: None}), stack(x))
        net = TransformerWrapper(num_tokens=9, max_seq_len=8, attn_layers=stack).eval()
        for name in names | {name for feature in net.features.catalogue for name in feature.takes}:
            torch.testing.assert_close(net(ids, **{name: None}), net(ids))
        with pytest.raises(TypeError, match='conditoin'):
            stack(x, conditoin=None)


def stack():
    return Decoder(dim=16, depth=1, heads=2, attn_dim_head=8)


def token_model(**flags):
    return TransformerWrapper(num_tokens=9, max_seq_len=16, attn_layers=stack(), **flags)


IDS = torch.randint(1, 8, (2, 6))
ENCODED = dict(dim=16, enc_num_tokens=9, enc_depth=1, enc_heads=2, enc_max_seq_len=16)
DECODED = dict(dec_num_tokens=9, dec_depth=1, dec_heads=2, dec_max_seq_len=16)
INPUTS = 'mask attn_mask pos attn_bias condition in_attn_cond mems mem_masks cache rotary_pos_emb causal'.split()
TAKERS = {  # how it is made, how it is called, what it takes beside the names of its signature
    'Attention': (lambda: Attention(16, heads=2), (torch.randn(2, 6, 16),), ['attn_bias', 'value_residual', 'mem']),
    'FeedForward': (lambda: FeedForward(16), (torch.randn(2, 6, 16),), []),
    'ViT': (
        lambda: ViTransformerWrapper(image_size=8, patch_size=4, attn_layers=Encoder(dim=16, depth=1, heads=2)),
        (torch.randn(1, 3, 8, 8),),
        [],
    ),
    'AttentionPool': (lambda: AttentionPool(16, heads=2), (torch.randn(2, 6, 16),), ['context_mask', 'attn_bias']),
    'XTransformer': (lambda: XTransformer(**ENCODED, **DECODED), (IDS, IDS), []),
    'XTransformer.generate': (
        lambda: XTransformer(**ENCODED, **DECODED), (IDS, IDS[:, :1], 2), ['context', 'context_mask', 'attn_mask'],
    ),
    'Continuous': (
        lambda: ContinuousTransformerWrapper(dim_in=4, dim_out=4, max_seq_len=16, attn_layers=stack()),
        (torch.randn(2, 6, 4),),
        [*INPUTS, 'prepend_embeds', 'sum_embeds', 'seq_start_pos'],
    ),
    'MultiInput': (
        lambda: MultiInputTransformerWrapper(num_tokens=dict(a=9), max_seq_len=16, attn_layers=stack()),
        (dict(a=IDS),),
        [*INPUTS, 'prepend_embeds', 'sum_embeds', 'seq_start_pos'],
    ),
    'XVal': (
        lambda: XValTransformerWrapper(num_tokens=9, numerical_token_id=8, max_seq_len=16, attn_layers=stack()),
        (IDS, torch.randn(2, 6)),
        [*INPUTS, 'prepend_embeds'],
    ),
    'loss': (lambda: AutoregressiveWrapper(token_model()), (IDS,), [*INPUTS, 'input_not_include_cache', 'embed_ids']),
    'generate': (lambda: AutoregressiveWrapper(token_model()), (IDS, 2), [*INPUTS, 'seq_start_pos', 'return_mems']),
    'beam_search': (lambda: AutoregressiveWrapper(token_model()), (IDS, 2), [*INPUTS, 'seq_start_pos']),
    'segments': (lambda: XLAutoregressiveWrapper(token_model(max_mem_len=4)), (IDS,), ['mask', 'cache', 'return_mems']),
    'latents': (lambda: XMLatentDecoder(token_model()), (IDS,), ['prepend_embeds', 'excise_prepend_embeds', 'cache']),
}  # fmt: skip


@pytest.mark.parametrize('name', TAKERS)
def test_none_is_no_input_of_any_class(name):
    make, args, names = TAKERS[name]
    net = make().eval()
    call = getattr(net, name.rpartition('.')[2]) if hasattr(net, name.rpartition('.')[2]) else net

    def run(**inputs):
        torch.manual_seed(0)
        return call(*args, **inputs)

    wanted, given = run(), [p.name for p in parameters(getattr(call, 'forward', call)) if p.default is None]
    for one in {*names, *given}:
        torch.testing.assert_close(run(**{one: None}), wanted, msg=one)


def test_token_ids_may_be_whole_floating_point_numbers():
    net = TransformerWrapper(num_tokens=9, max_seq_len=8, attn_layers=Decoder(dim=16, depth=1, heads=2)).eval()
    ids = torch.arange(5)[None]
    for dtype in (torch.float32, torch.float64, torch.bfloat16, torch.int32, torch.uint8):
        torch.testing.assert_close(net(ids.to(dtype)), net(ids))
    with pytest.raises(TypeError, match='it must hold integer token ids'):
        net(ids + 0.5)


def test_a_configuration_has_attributes():
    net = TransformerWrapper(num_tokens=9, max_seq_len=8, attn_layers=Decoder(dim=16, depth=1, heads=2))
    config = net.config
    assert config.num_tokens == config['num_tokens'] == 9 and config.to_dict() == dict(config)
    assert json.loads(config.to_json_string()) == json.loads(json.dumps(config))
    assert getattr(config, 'model_type', None) is None
    again = AutoregressiveWrapper.from_config(AutoregressiveWrapper(net).config.to_json_string())
    assert again.net.config == config
    assert net.muon_parameters() == net.attn_layers.muon_parameters() != []


# what importing costs


@pytest.mark.costly
def test_import_leaves_the_compiler_of_torch_alone():
    """It takes longer to load than torch itself. In a process of its own, since tests here compile."""
    code = 'import sys, torch; before = set(sys.modules); import x_transformers; print(*set(sys.modules) - before)'
    done = subprocess.run([sys.executable, '-c', code], capture_output=True, text=True, check=True, cwd=ROOT)
    loaded = set(done.stdout.split())
    assert 'x_transformers.memory.knn_lm' in loaded
    heavy = ('torch._dynamo', 'torch._inductor', 'einx', 'sympy')  # of which early torch may load the last by itself
    assert not {name for name in loaded if name.startswith(heavy if load_flex() else heavy[:3])}


@pytest.mark.costly
def test_functions_that_are_only_eager_break_graphs():
    """Called from a compiled function they run as they are; alone they are traced by nobody."""
    from x_transformers.core.transforms import eager_only

    traced = []

    @eager_only
    def search(x):
        traced.append(torch.compiler.is_compiling())
        return x * 2

    graphs = []

    def counting(graph, _):
        graphs.append(graph)
        return graph.forward

    x = torch.ones(3)
    assert torch.compile(lambda x: search(x + 1) - 1, backend=counting)(x).eq(3).all()
    assert len(graphs) == 2 and traced == [False]


@pytest.mark.parametrize(
    ('module', 'category', 'is_error'),
    [
        ('torch._decomp.decompositions_for_jvp', FutureWarning, False),
        ('torch.jit._script', DeprecationWarning, False),
        ('torch', DeprecationWarning, False),
        ('torch.nn.functional', UserWarning, True),
        ('x_transformers.attend', FutureWarning, True),
        ('x_transformers.attend', DeprecationWarning, True),
        ('torchvision.ops', DeprecationWarning, True),
        ('test_names', FutureWarning, True),
    ],
)
def test_warnings_of_our_code_are_errors(module, category, is_error):
    """Torch may deprecate its own insides."""
    with pytest.raises(category) if is_error else nullcontext():
        warnings.warn_explicit('soon gone', category, 'file.py', 1, module=module)
