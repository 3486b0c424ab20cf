"""Names that other people's code imports, what they compute, and configurations as trainers read them."""

import copy
import functools
import importlib
import inspect
import itertools
import json
import pickle
import subprocess
import sys
import warnings
from contextlib import nullcontext
from pathlib import Path

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
PLAIN = {'exists', 'default'}  # one or two arguments, whose names differ by module there


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


@pytest.mark.parametrize('case', ORDER)
def test_order_of_parameters(case):
    """Optimizers, `parameters_to_vector` and averages of weights go by the order, not by names."""
    model = eval(case, {**vars(importlib.import_module('x_transformers')), 'GRU': nn.GRU})
    assert list(model.state_dict()) == ORDER[case]
    parameters = dict(model.named_parameters())
    assert list(parameters) == [name for name in ORDER[case] if name in parameters]


def test_names_that_mean_something_else_in_one_module():
    from x_transformers import autoregressive_wrapper, nonautoregressive_wrapper, xl_autoregressive_wrapper

    logits = torch.arange(10.0)[None]
    modules = (autoregressive_wrapper, xl_autoregressive_wrapper, nonautoregressive_wrapper)
    assert [m.top_k(logits, 0.7).isfinite().sum().item() for m in modules] == [7, 7, 4]
    assert core.default(None, dict) == {} and autoregressive_wrapper.default(None, dict) is dict
    assert core.default(None, None, 4) == 4 == core.default(None, 4)


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
    from x_transformers import attend
    from x_transformers.compat.helpers import masked_mean

    x = torch.tensor([[1.0, 2.0, -1.0], [0.0, 3.0, 1.0]])
    mask = torch.tensor([[True, False, True], [False, False, False]])
    assert masked_mean(x, mask) == 0 and masked_mean(x, mask, dim=-1).tolist() == [0, 0]
    torch.testing.assert_close(masked_mean(x, torch.tensor([True, False])), torch.tensor(2 / 3))
    torch.testing.assert_close(core.log(torch.tensor([0.0, 2.0])).exp(), torch.tensor([1e-20, 2.0]))
    assert core.Identity()(x, 1, k=2) is x
    assert attend.create_causal_mask(2, 4, 'cpu').tolist() == [[False, False, False, True], [False] * 4]
    q, angles = torch.randn(1, 2, 3, 4).double(), torch.randn(1, 5, 4).double()
    turned = core.apply_polar_pos_emb(q, angles)
    wanted = F.softplus(q) * torch.exp(1j * angles[:, None, -3:])
    torch.testing.assert_close(turned, torch.cat((wanted.real, wanted.imag), dim=-1))
    always, unlike = pickle.loads(pickle.dumps((core.always(3), core.not_equals(3))))
    assert always(1, k=2) == 3 and unlike(4) and not unlike(3)


def test_what_functions_of_wrappers_compute():
    from x_transformers import belief_state_wrapper, continuous, entropy_based_tokenizer, nonautoregressive_wrapper
    from x_transformers.xl_autoregressive_wrapper import newtonschulz5

    pair, target = torch.stack((torch.randn(4), torch.rand(4) + 0.1)), torch.randn(4)
    wanted = F.gaussian_nll_loss(pair[0], target, pair[1], reduction='none')
    torch.testing.assert_close(continuous.GaussianNLL()(pair, target), wanted)
    rows = torch.tensor([[1, 2, 3, 4], [5, 6, 7, 8]])
    flipped = belief_state_wrapper.flip(rows, lens=torch.tensor([2, 3]))
    assert flipped.tolist() == [[2, 1, 3, 4], [7, 6, 5, 8]]
    entropies = torch.tensor([[0.1, 0.2, 0.5, 0.3, 0.9, 0.05]])
    starts = entropy_based_tokenizer.get_accumulated_threshold_mask(entropies, 0.6, 0.25)
    assert starts.nonzero()[:, 1].tolist() == [3, 4]
    everything, shares = torch.ones(3, 7, dtype=torch.bool), torch.tensor([[0.1], [0.5], [1.0]])
    part = nonautoregressive_wrapper.get_mask_subset_prob(everything, shares, 2)
    assert part.sum(dim=-1).tolist() == [2, 4, 7]
    matrices = torch.randn(2, 3, 5)
    same, applied = newtonschulz5(matrices[0])
    assert same.equal(matrices[0]) and applied is False
    once, applied = newtonschulz5(matrices, steps=1, coefs=(2.0, 0.0, 0.0))
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
        names = {name for feature in stack.features.catalogue for name in feature.call_inputs}
        assert {'condition', 'deep_embeds', 'in_attn_cond'} & names
        for name in names:
            torch.testing.assert_close(stack(x, **{name: None}), stack(x))
        net = TransformerWrapper(num_tokens=9, max_seq_len=8, attn_layers=stack).eval()
        for name in names | {name for feature in net.features.catalogue for name in feature.call_inputs}:
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
    with pytest.raises(TypeError, match='must hold integer token ids'):
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
    from x_transformers.core.modes import eager_only

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
