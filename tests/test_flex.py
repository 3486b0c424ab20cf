"""FlexAttention: the numbers of the formula, which calls go there, and the way back where it does not run.

On a CPU torch runs it uncompiled, as its definition. To trace that takes longer than all else, so most tests run the
definition as it is written out here, and by night all of them both ways. What is compiled is tested forwards here, and
on a GPU in full.
"""

import copy
import functools
import re
import types

import pytest
import test_kernels as kernels
import torch
from law_cases import BY_NAME, FLAG_CASES, gradients, inputs_for, model_of, randomise, run, shallow
from oracles import assert_close, randn
from test_kernels import MODULES, N, blocked, layer, layer_outcome
from torch.utils.checkpoint import checkpoint

from x_transformers import Attention, Decoder, Encoder
from x_transformers.attend import SoftclampLogits
from x_transformers.core import rows
from x_transformers.features import ATTENTION, STACK, AttentionFeature
from x_transformers.flags import flag, warn_once
from x_transformers.kernels import dense, flex, operators
from x_transformers.kernels.flex import try_out
from x_transformers.patterns import BlockLocal, Global, Local1D, Mix, Sliding
from x_transformers.x_transformers import AlibiPositionalBias

# torch warns where it runs uncompiled, and of what it looks at itself
pytestmark = [
    pytest.mark.filterwarnings('ignore:flex_attention called without', 'ignore:The .grad attribute'),
    pytest.mark.skipif(flex.load_flex() is None, reason='this torch has no FlexAttention that keeps to the keys'),
]

# what acts on scores and has no form for FlexAttention; of the forget gates, those per row
WITHOUT_FORM = {
    'ShawKeys',  # where values have vectors too
    'ShawPositions',
    'PreScalePostTalkingHeads', 'PreTalkingHeads', 'PostTalkingHeads', 'TalkingHeads', 'UseCoPE', 'Selective',
    'Differential', 'CogSigned', 'InvertedAttention', 'SparseTopk', 'SigmoidAttention', 'HardAttention', 'Entmax15',
    'ScalableSoftmax', 'GumbelSoftmax', 'CustomNormaliser', 'RelativeProjectedBias', 'DataDependentBias',
    'ResidualAttention', 'MoBA', 'SparseIndexer', 'EntmaxAlpha',
}  # fmt: skip
WITH_FORM = {
    'SoftclampLogits',
    'LearnedSink',
    'DataDependentBias',
    'Window',
    'Alibi',
    'T5Bias',
    'DynamicBias',
    'MemoryKV',
}
# what attends in its own way
OWN_WAYS = {'attn_kernel', 'attn_sparse_pattern', 'attn_cluster', 'attn_aft', 'attn_linformer_k'}
# what says which kernel runs
OF_KERNELS = {'SDPKwargs', 'PackedDocuments'}


def for_all(function, *out):
    """A function of b, h, i and j for all of them at once, with `out` in front that has these axes."""
    from torch._dynamo._trace_wrapped_higher_order_op import TransformGetItemToIndex  # loads the compiler of torch

    for axis in (3, 2, 1, 0):
        own = [None] * 4
        own[axis] = 0
        function = torch.vmap(function, in_dims=(*(0 for _ in out), *own))

    def indexed(*args):
        with TransformGetItemToIndex():  # as torch does it: some releases index by `.item()`
            return function(*args)

    return indexed


def written_out(q, k, v, score_mod, block_mask, scale, enable_gqa, return_aux=None):
    """What FlexAttention is, by its documentation:  q b h i d,  k and v b g j d  ->  b h i d."""
    assert enable_gqa == (q.shape[1] != k.shape[1])
    k, v = (t.repeat_interleave(q.shape[1] // t.shape[1], dim=1) for t in (k, v))
    scores = q @ k.mT * scale
    where = [torch.arange(size) for size in scores.shape]
    if score_mod is not None:
        scores = for_all(score_mod, scores)(scores, *where)
    if block_mask is not None:
        assert block_mask.shape[-2:] == scores.shape[-2:]
        scores = scores.masked_fill(~for_all(block_mask.mask_mod)(*where), -torch.inf)
    lse = scores.logsumexp(dim=-1)
    weights = (scores - lse.unsqueeze(-1)).exp()
    out = weights.masked_fill((lse == -torch.inf).unsqueeze(-1), 0.0).to(v.dtype) @ v
    return out if return_aux is None else (out, types.SimpleNamespace(lse=lse))


class Flexing:
    """Inside, large calls of a CPU go to FlexAttention, by torch, uncompiled, or as it is written out here.

    `calls` counts them, `said` are the warnings.
    """

    def __init__(self, by_torch=True):
        self.patch, self.calls, self.said = pytest.MonkeyPatch(), 0, []
        self.flexed, self.by_torch = flex.run_flex, by_torch
        self.values = dict(
            DEVICES=('cpu',), LEARNED=True, DTYPES=(*flex.DTYPES, torch.float64), LEAST_WIDTH=1,
            first_sizes={}, works={}, known_masks={},
            try_out=lambda *_: None, compile_flex=lambda function, *_, **__: function, run_flex=self.counted,
            warn_once=self.said.append,
        )  # fmt: skip

    def counted(self, *args):
        self.calls += 1
        return self.flexed(*args)

    def __enter__(self):
        for name, value in self.values.items():
            self.patch.setattr(flex, name, value)
        # all tests share what torch makes of the definition: the sizes of one are not those of another
        self.static = torch._dynamo.config.patch(automatic_dynamic_shapes='compile_flex' not in self.values)
        self.static.__enter__()
        # there it refuses gradients, although the definition has them
        self.patch.setattr(flex.load_flex(), '_validate_device', lambda *_: None, raising=False)
        if not self.by_torch:
            self.patch.setattr(flex.load_flex(), 'flex_attention', written_out)
        self.patch.setattr(rows, 'LARGE', {'cpu': 0, 'cuda': 0})
        return self

    def __exit__(self, *_):
        self.static.__exit__(None, None, None)
        self.patch.undo()


@pytest.fixture(params=['written out', pytest.param('torch', marks=pytest.mark.nightly)])
def flexing(request):
    flexing = Flexing(by_torch=request.param == 'torch')
    yield flexing
    flexing.patch.undo()


@pytest.fixture
def flexing_by_torch():
    flexing = Flexing()
    yield flexing
    flexing.patch.undo()


def by_formula(net):
    """The same network, whose layers all follow the formula."""
    for module in net.modules():
        if isinstance(module, Attention):
            module.flash = False
            module.choose_kernel()
    return net


def compare(flexing, outcome, net, *args, **inputs):
    """`outcome(net, ...)`, a value and gradients, by FlexAttention and by the formula."""
    with flexing:
        found, found_grads = outcome(net, *args, **inputs)
    assert flexing.calls and not flexing.said
    wanted, grads = outcome(by_formula(net), *args, **inputs)
    assert_close(found, wanted)
    assert len(found_grads) == len(grads)
    for a, b in zip(found_grads, grads, strict=True):
        assert (a is None) == (b is None)
        if b is not None:
            assert_close(a, b, what='gradient')


# numbers


BOTH = dict(softclamp_logits=True, logit_softclamp_value=1.5, head_learned_sink=True)
SHARED = ('plain', 'grouped', 'one key head', 'wide values', 'memory', 'window, memory')
SETTINGS = {name: kernels.SETTINGS[name] for name in SHARED} | {
    'zero key, grouped': dict(add_zero_kv=True, num_mem_kv=1, kv_heads=2),
    'clamp': dict(softclamp_logits=True, logit_softclamp_value=1.5),
    'sink, grouped': dict(head_learned_sink=True, kv_heads=2),
    'clamp, sink, window, grouped': dict(**BOTH, max_attend_past=3, kv_heads=2),
    'laser': dict(laser=True),
    'rescaled by distance': dict(da_pos_rescale=True, num_mem_kv=1, kv_heads=2),
    'norms': dict(qk_norm=True, qk_norm_scale=3),
}
PADDED = {
    'right': torch.arange(N) < torch.tensor([N, 3])[:, None],
    'left': torch.arange(N) >= torch.tensor([4, 0])[:, None],
    'inside, all': (torch.arange(N) % 3 == 1) & torch.tensor([True, False])[:, None],
}


@pytest.mark.parametrize('setting', SETTINGS)
@pytest.mark.parametrize(('bias', 'causal'), [(None, False), ('T5', True), ('alibi', True)])
def test_layers(flexing, setting, bias, causal):
    """Rows of the last kind of padding see nothing: zeros."""
    module, x = layer(causal=causal, **SETTINGS[setting]), randn(2, N, 12)
    own = {} if bias is None else dict(rel_pos=randomise(MODULES[bias](causal).double()))
    kind = list(PADDED)[list(SETTINGS).index(setting) % len(PADDED)] if bias else 'inside, all'
    outcome = functools.partial(layer_outcome, mask=PADDED[kind], attn_mask=randn(N, N, seed=2) > -1.5, **own)
    compare(flexing, outcome, module, x)
    if kind == 'inside, all':
        flexing.calls = 0
        with flexing:
            _, grads = outcome(module, x)
        assert all(grad.isfinite().all() for grad in grads if grad is not None)


@pytest.mark.parametrize('causal', [True, False])
@pytest.mark.parametrize('flags', [{}, dict(num_mem_kv=2, kv_heads=2), dict(max_attend_past=3, **BOTH)], ids=str)
def test_forget_gates(flexing, flags, causal):
    module = layer(causal=causal, data_dependent_alibi=True, **flags)
    compare(flexing, layer_outcome, module, randn(2, N, 12), mask=PADDED['left'])


@pytest.mark.parametrize('shape', ['b h i j', '1 h i j', 'h i j', 'i j', '1 1 1 j', 'b 1 i 1', '1 1 1 1'])
@pytest.mark.parametrize('flags', [{}, dict(num_mem_kv=2, kv_heads=2, causal=True)], ids=str)
def test_given_biases_and_masks(flexing, shape, flags):
    sizes = dict(b=2, h=4, i=N, j=N) | {'1': 1}
    bias = randn(*(sizes[letter] for letter in shape.split()), seed=1)
    module, x = layer(**flags), randn(2, N, 12)
    compare(flexing, layer_outcome, module, x, attn_bias=bias)
    compare(flexing, layer_outcome, module, x, attn_mask=bias > -0.5, rel_pos=AlibiPositionalBias(4).double())


def test_a_mask_for_the_keys_in_front(flexing):
    module, keys = layer(num_mem_kv=1), (randn(2, 4, 3, 6, seed=1), randn(2, 4, 3, 6, seed=2))
    mask = torch.tensor([[True, False, True], [False, False, True]])
    own = dict(additional_key_values=keys, additional_key_value_mask=mask, attn_bias=randn(N, N, seed=3))
    with flexing:
        found = module(randn(2, N, 12), mask=PADDED['right'], **own)
    assert flexing.calls and not flexing.said
    assert_close(found, by_formula(module)(randn(2, N, 12), mask=PADDED['right'], **own))


@pytest.mark.costly
@pytest.mark.parametrize('bias', MODULES)
def test_other_lengths(flexing, bias):
    """Memories, a context, and causal calls with more queries than keys."""
    rel_pos = randomise(MODULES[bias](True).double())
    module, x = layer(causal=True, num_mem_kv=1), randn(2, N, 12)
    mask = torch.arange(4) > torch.tensor([0, 3])[:, None]
    compare(flexing, layer_outcome, module, x, mem=randn(2, 4, 12, seed=1), mem_mask=mask, rel_pos=rel_pos)
    for length in (4, 14):
        for causal in (True, False):
            module = layer(causal=causal, softclamp_logits=True, head_learned_sink=causal, num_mem_kv=2 * causal)
            context_mask = torch.arange(length) < torch.tensor([length, 2])[:, None]
            inputs = dict(context=randn(2, length, 12, seed=1), context_mask=context_mask)
            compare(flexing, layer_outcome, module, x, **inputs)


@pytest.mark.parametrize('name', ['T5', 'alibi'])
def test_positions_of_the_user(flexing, name):
    """Gaps of several buckets, the same for all rows and not; a bias of a user's own goes another way."""
    rel_pos = randomise(MODULES[name](True).double())
    for size in ((2, N), (1, N), (N,)):
        pos = torch.randint(-1, 5, size, generator=torch.Generator().manual_seed(0)).cumsum(dim=-1)
        compare(flexing, layer_outcome, layer(causal=True), randn(2, N, 12), rel_pos=rel_pos, pos=pos)

    class Steeper(type(rel_pos)):
        def of_distance(self, distance):
            return 2 * super().of_distance(distance)

    rel_pos.__class__, flexing.calls = Steeper, 0
    with flexing:
        layer(causal=True)(randn(2, N, 12), rel_pos=rel_pos, pos=pos)
    assert flexing.calls == 0


@pytest.mark.parametrize('flags', [dict(), dict(kv_heads=2, num_mem_kv=2, softclamp_logits=True)], ids=str)
def test_several_new_tokens_behind_a_cache(flexing, flags):
    module, x = layer(causal=True, **flags), randn(2, N, 12)
    rel_pos = randomise(MODULES['T5'](True).double())
    with flexing:
        _, cache = module(x[:, :4], return_intermediates=True, rel_pos=rel_pos)
        first = flexing.calls
        rest = module(x[:, 4:], cache=cache, rel_pos=rel_pos)
    assert flexing.calls > first > 0
    assert_close(rest, by_formula(module)(x, rel_pos=rel_pos)[:, 4:])


def model_outcome(net, inputs):
    grads = gradients(net, inputs)
    return run(net, inputs), [grads[name] for name in sorted(grads)]


@pytest.mark.parametrize(
    'name',
    [
        'alibi_pos_bias', 'rel_pos_bias', 'dynamic_pos_bias', 'attn_softclamp_logits', 'attn_head_learned_sink',
        'attn_data_dependent_alibi', 'attn_max_attend_past=(2,4)', 'pos, T5', 'attn_bias, alibi', 'polar, dynamic bias',
        'additional kv, grouped',
    ],
)  # fmt: skip
def test_models(flexing, name):
    net = copy.deepcopy(model_of(BY_NAME[name]))  # whose kernel is chosen anew
    inputs = inputs_for(net, BY_NAME[name])
    compare(flexing, model_outcome, net, inputs)


@pytest.mark.costly
@pytest.mark.parametrize(
    'flags', [dict(**BOTH, max_attend_past=3, kv_heads=2), dict(num_mem_kv=2, data_dependent_alibi=True)], ids=str
)
def test_some_layers_by_torch(flexing_by_torch, flags):
    """What stands written out here is what torch runs; the others by night."""
    module, rel_pos = layer(causal=True, **flags), randomise(MODULES['T5'](True).double())
    attn_mask = randn(N, N, seed=2) > -1.5
    compare(
        flexing_by_torch,
        layer_outcome,
        module,
        randn(2, N, 12),
        mask=PADDED['left'],
        attn_mask=attn_mask,
        rel_pos=rel_pos,
    )


@pytest.mark.parametrize('flags', [dict(alibi_pos_bias=True), dict(rel_pos_bias=True, attn_max_attend_past=2), {}])
def test_documents(flexing, flags):
    """Ids that come again belong together."""
    net, x = randomise(Decoder(dim=12, depth=2, heads=4, attn_dim_head=6, **flags).double()), randn(2, 8, 12)
    ids = torch.tensor([[0, 0, 0, 4, 4, 4, 0, 0], [7, 7, 7, 7, 7, 1, 1, 2]])
    compare(flexing, layer_outcome, net, x, document_ids=ids)


def test_packed_documents(flexing):
    kwargs = dict(cu_seqlens_q=torch.tensor([0, 3, 8]), cu_seqlens_k=torch.tensor([0, 3, 8]))
    flags = dict(rotary_pos_emb=True, attn_flash_pack_seq=True, verbose=False)
    net = randomise(Decoder(dim=12, depth=2, heads=2, attn_dim_head=6, **flags).double())
    compare(flexing, layer_outcome, net, randn(1, 8, 12), flash_pack_seq_kwargs=kwargs)


def test_left_padding_with_memories(flexing):
    """Positions of their own per row, of which the window is one of positions too."""
    net, x = (
        randomise(Decoder(dim=12, depth=2, heads=2, attn_dim_head=6, attn_max_attend_past=3).double()),
        randn(2, 8, 12),
    )
    mems = [randn(2, 3, 12, seed=seed) for seed in (1, 2)]
    compare(flexing, layer_outcome, net, x, seq_start_pos=torch.tensor([0, 3]), mems=mems)


def test_autocast_and_half_precision(flexing):
    """What the formula gives in half precision, but for its rounding; the gradient of a table is that of float32."""
    net, x = Decoder(dim=32, depth=1, heads=2, attn_dim_head=16, rel_pos_bias=True, attn_kv_heads=1), randn(2, N, 32)
    net, x = net.float(), x.float()
    wanted = by_formula(net)(x)
    module = net.layers[0][1]
    module.flash = None
    module.choose_kernel()
    with flexing:
        with torch.autocast('cpu', dtype=torch.bfloat16):
            out = net(x)
        out.float().sum().backward()
        grad = net.rel_pos.relative_attention_bias.weight.grad
        assert grad.dtype == torch.float32 and grad.abs().sum() > 0
        half = net.bfloat16()(x.bfloat16())
        half.float().sum().backward()
    assert flexing.calls == 2 and not flexing.said
    assert half.dtype == torch.bfloat16
    assert_close(out.float(), wanted, tolerance=0.03)
    assert_close(half.float(), wanted, tolerance=0.03)
    learned = torch.zeros(2, dtype=torch.bfloat16, requires_grad=True)  # many gradients are summed up in each entry
    assert rows.summable(learned).dtype == torch.float32
    assert rows.summable(learned.detach()).dtype == torch.bfloat16


# patterns


PATTERNS = {
    'window': Sliding(3),
    'heads differ': Mix((Sliding(1), BlockLocal(4)), heads=(3, 1)),
    'any': Local1D(2, 2) | Global(positions=(1,)),
    'all': Sliding(4) & BlockLocal(3),
    'marked': Sliding(1) | Global('mask'),
}


def compare_with_gathered(flexing, outcome, net, *args, **inputs):
    """The same by FlexAttention and by the keys that are gathered."""
    with flexing:
        found, found_grads = outcome(net, *args, **inputs)
    assert flexing.calls and not flexing.said
    wanted, grads = outcome(net, *args, **inputs)
    assert_close(found, wanted)
    for a, b in zip(found_grads, grads, strict=True):
        assert_close(torch.zeros(()) if a is None else a, torch.zeros(()) if b is None else b, what='gradient')


@pytest.mark.parametrize('setting', PATTERNS)
def test_patterns(flexing, setting):
    """Beside padding and a bias, with keys in front and fewer heads of keys."""
    marked = setting == 'marked'
    module = layer(causal=not marked, num_mem_kv=1, kv_heads=2, sparse_pattern=PATTERNS[setting])
    inputs = dict(mask=PADDED['inside, all'], attn_mask=randn(N, N, seed=2) > -1.5)
    if marked:
        inputs['global_mask'] = torch.arange(N) == torch.tensor([[2], [5]])
    rel_pos = randomise(MODULES['alibi'](True).double())
    compare_with_gathered(flexing, layer_outcome, module, randn(2, N, 12), rel_pos=rel_pos, **inputs)


def test_patterns_of_models(flexing):
    """Padding on the left moves blocks, row by row; tokens behind a cache stand at their places."""
    stack = Decoder(dim=12, depth=2, heads=4, attn_dim_head=6, attn_sparse_pattern=PATTERNS['heads differ'])
    net, x = randomise(stack.double()), randn(2, 8, 12)
    compare_with_gathered(flexing, layer_outcome, net, x, seq_start_pos=torch.tensor([0, 3]))
    with flexing:
        _, cache = net(x[:, :3], return_hiddens=True)
        calls = flexing.calls
        rest = net(x, cache=cache)
    assert flexing.calls > calls
    assert_close(rest, net(x)[:, 3:])


def test_a_pattern_that_spreads_over_all_blocks_is_gathered(flexing):
    with flexing:
        for pattern in (Sliding(2, dilation=2), 'strided'):
            layer(causal=True, sparse_pattern=pattern)(randn(2, N, 12))
    assert flexing.calls == 0


def test_patterns_that_are_alike_are_known_by_what_they_are(flexing):
    """Nothing is compiled anew for another layer, or another length."""
    kinds = []
    flexing.values['compile_flex'] = lambda function, kind, *_, **__: (
        kinds.append((function.__name__, kind)) or function
    )
    with flexing:
        for n in (N, N + 3):
            layer(causal=True, sparse_pattern=copy.deepcopy(PATTERNS['heads differ']))(randn(2, n, 12))
        assert len(set(kinds)) == 2 and len(kinds) == 4
        layer(causal=True, sparse_pattern=PATTERNS['window'])(randn(2, N, 12))
    assert len(set(kinds)) == 4


# which calls


def goes_to_flex(flexing, module, x, **inputs):
    before = flexing.calls
    module(x, **inputs)
    return flexing.calls > before


@pytest.mark.costly
def test_which_features_have_a_form(flexing):
    """All others run beside a mask that only FlexAttention or blocks can take."""
    answers, fits = {True: set(), False: set()}, flex.fits
    for case in FLAG_CASES:
        if not (case.flag.startswith('attn_') or case.feature in STACK) or case.flag.startswith('cross_'):
            continue
        if OWN_WAYS & case.stack.keys():
            continue
        net, given = model_of(shallow(case)), []
        inputs = inputs_for(net, case)
        if 'attn_flash_pack_seq' not in case.stack:
            inputs['attn_mask'] = torch.ones(7, 7, dtype=torch.bool).tril(2)
        with flexing, torch.no_grad():
            flexing.patch.setattr(operators, 'fits', lambda *args, given=given: given.append(fits(*args)))
            run(net, inputs)
        answers[bool(given) and all(given)].add(case.feature.__name__)
    assert answers[False] - OF_KERNELS == WITHOUT_FORM
    assert answers[True] >= WITH_FORM


def test_what_learns_goes_there_when_it_does_not_learn(flexing):
    """A gradient added up once per score may take longer than blocks."""
    assert flex.LEARNED is False
    x, net = randn(2, N, 12), Decoder(dim=12, depth=1, heads=2, attn_dim_head=6, rel_pos_bias=True).double()
    flexing.values['LEARNED'] = False
    with flexing:
        assert not goes_to_flex(flexing, net, x)
        with torch.no_grad():
            assert goes_to_flex(flexing, net, x)
        net.requires_grad_(False)
        assert goes_to_flex(flexing, net, x)


@pytest.mark.costly
def test_choice(flexing):
    x, bias = randn(2, N, 12).float(), dict(attn_bias=randn(N, N).float())
    goes = functools.partial(goes_to_flex, flexing)
    plain = Attention(dim=12, heads=2, dim_head=6, causal=True)
    assert flex.DEVICES == ('cuda',)
    with flexing:
        assert goes(plain, x, **bias)
        assert goes(plain, x, attn_mask=bias['attn_bias'] > -1)
        assert goes(Attention(dim=12, heads=2, dim_head=6, softclamp_logits=True), x)
        assert goes(Attention(dim=12, heads=2, dim_head=6, flash=True), x, **bias)
        # whole keys hidden, and the triangle: SDPA does as well
        assert not goes(plain, x)
        assert not goes(plain, x, mask=PADDED['right'])
        # the formula, its maps, and what has no form
        assert not goes(Attention(dim=12, heads=2, dim_head=6, flash=False), x, **bias)
        assert not goes(plain, x, keep_maps=True, **bias)
        assert not goes(Attention(dim=12, heads=2, dim_head=6, softclamp_logits=True, sparse_topk=3), x)
        assert not goes(plain, x, prev_attn=randn(2, 2, N, N).float())
        assert goes(plain, x[:, :1], attn_bias=bias['attn_bias'][:1, :1]) is False  # a single row
        dropping = Attention(dim=12, heads=2, dim_head=6, dropout=0.2)
        assert not goes(dropping.train(), x, **bias) and goes(dropping.eval(), x, **bias)
        plain.sdp_backends = ('MATH',)
        assert not goes(plain, x, **bias)
        plain.sdp_backends = None
        torch.use_deterministic_algorithms(True)
        assert not goes(plain, x, **bias)
        torch.use_deterministic_algorithms(False)
        # shapes and dtypes
        flexing.patch.setattr(flex, 'DTYPES', (torch.float32,))
        flexing.patch.setattr(flex, 'LEAST_WIDTH', 7)
        assert not goes(plain, x, **bias)
        flexing.patch.setattr(flex, 'LEAST_WIDTH', 6)
        assert goes(plain, x, **bias) and not goes(Attention(dim=12, heads=2, dim_head=6, value_dim_head=4), x, **bias)
        assert not goes(plain.double(), x.double(), attn_bias=bias['attn_bias'].double())
        plain.float()
        flexing.patch.setattr(flex, 'MOST_ENTRIES', N * N)
        assert not goes(plain, x, **bias)
        flexing.patch.setattr(flex, 'MOST_ENTRIES', N * N + 1)
        assert goes(plain, x, **bias)
        flexing.patch.setattr(rows, 'LARGE', {'cpu': 2 * 2 * N * N, 'cuda': 0})
        assert not goes(plain, x, **bias)
        flexing.patch.setattr(rows, 'LARGE', {'cpu': 0, 'cuda': 0})
        flexing.patch.setattr(flex, 'load_flex', lambda: None)
        assert not goes(plain, x, **bias)
    assert not flexing.said


class Sharper(AttentionFeature):
    """Logits to a power, as a user would add it."""

    row_wise = True
    sharper = flag(False, 'odd powers of logits')

    def logits(self, sim, call):
        return sim**3

    def score_mod(self, call):
        return lambda score, b, h, i, j: score**3


class Softer(Sharper):
    """Changes the stage, and forgets the form."""

    def logits(self, sim, call):
        return sim / 3


def test_a_feature_of_a_users_own(flexing):
    module = layer(features=(*ATTENTION, Sharper), sharper=True, softclamp_logits=True, causal=True)
    compare(flexing, layer_outcome, module, randn(2, N, 12), attn_bias=randn(N, N, seed=4))
    flexing.calls = 0
    module = layer(features=(*ATTENTION, Softer), sharper=True, causal=True)
    with flexing:
        found = module(randn(2, N, 12))
    assert flexing.calls == 0
    assert_close(found, by_formula(module)(randn(2, N, 12)))
    assert flex.has_form(SoftclampLogits) and not flex.has_form(Softer)
    both = type('Both', (Sharper,), dict(scores=Sharper.logits, score_mod=Sharper.score_mod))
    assert not flex.has_form(both)


# the way back


@pytest.mark.parametrize('backwards', [True, False])
def test_what_fails_goes_another_way(flexing, logged, backwards):
    """Said once, and not tried again; wherever it fails, the step gets the right numbers."""
    module, x = layer(causal=True, softclamp_logits=True), randn(2, N, 12)
    tries = []

    class Fails(torch.autograd.Function):
        @staticmethod
        def forward(ctx, out):
            return out.clone()

        @staticmethod
        def backward(ctx, grad):
            raise RuntimeError('no kernel\nfor this')

    def broken(q, k, v, call, on, forms):
        tries.append(1)
        if not backwards:
            raise RuntimeError('no kernel\nfor this')
        return Fails.apply(dense.run_eager(q, k, v, call.combine(), on))

    with flexing:
        flexing.patch.setattr(flex, 'warn_once', warn_once)
        flexing.patch.setattr(flex, 'run_flex', broken)
        flexing.patch.setattr(flex, 'try_out', try_out)
        found = [layer_outcome(module, x) for _ in range(2)]
    assert len(tries) == 1
    assert len(logged) == 1 and 'FlexAttention does not run here' in logged[0] and 'no kernel' in logged[0]
    wanted, grads = layer_outcome(by_formula(module), x)
    for out, found_grads in found:
        assert_close(out, wanted)
        for a, b in zip(found_grads, grads, strict=True):
            assert_close(a, b)


def wrong_output(out):
    return out * 1.2


def wrong_in_one_row(out):
    return torch.cat((out[..., :-1, :], out[..., -1:, :] + 0.3), dim=-2)


def wrong_gradient(out):
    return out.detach() + (out - out.detach()) * 1.3


def not_a_number(out):
    return out.where(torch.arange(out.shape[-2])[:, None] > 1, torch.nan)


@pytest.mark.parametrize('wrong', [wrong_output, wrong_in_one_row, wrong_gradient, not_a_number, lambda out: out])
@pytest.mark.parametrize('flags', [dict(softclamp_logits=True), BOTH, dict(kv_heads=2)], ids=str)
@pytest.mark.parametrize('learns', [True, False])
def test_other_numbers_are_not_trusted(flexing, monkeypatch, flags, wrong, learns):
    """A kernel that is wrong, in its outputs or its gradients alone, is compared once, and left; a right one stays."""
    module, x, own = layer(causal=True, **flags), randn(2, N, 12), flex.run_flex
    bias = {} if flags is BOTH or 'softclamp_logits' in flags else dict(attn_bias=randn(N, N))

    def kernel(*args):
        flexing.calls += 1
        return wrong(own(*args))

    monkeypatch.setattr(flex, 'CHECKED_ROWS', 2)
    bad = wrong.__name__ != '<lambda>' and (learns or wrong is not wrong_gradient)
    wanted, grads = layer_outcome(by_formula(copy.deepcopy(module)), x, **bias)
    with flexing, torch.set_grad_enabled(learns):
        flexing.patch.setattr(flex, 'run_flex', kernel)
        flexing.patch.setattr(flex, 'try_out', try_out)
        for calls in (1, 0) if bad else (2, 1):
            flexing.calls = 0
            out = layer_outcome(module, x, **bias)[0] if learns else module(x, **bias)
            assert flexing.calls == calls
            if wrong is not wrong_gradient or learns:
                assert_close(out, wanted)
        if learns:
            for one, other in zip(layer_outcome(module, x, **bias)[1], grads, strict=True):
                assert one is None or (assert_close(one, other, 'gradient') is None)
    assert len(flexing.said) == bad
    if bad:
        assert re.search('blocks take its place: .* is (nan|-?[0-9.e-]+), by the formula -?[0-9.e-]+$', flexing.said[0])


def test_without_room_it_may_try_again(flexing):
    module, x, tries = layer(softclamp_logits=True), randn(2, N, 12), []

    def full(*args):
        tries.append(1)
        raise torch.OutOfMemoryError('full')

    with flexing:
        flexing.patch.setattr(flex, 'run_flex', full)
        for _ in range(2):
            out = module(x)
    assert len(tries) == 2 and not flexing.said
    assert_close(out, by_formula(module)(x))


@pytest.mark.costly
def test_the_backward_pass_is_tried_out(flexing):
    """Once for the first sizes and once for all others, without gradients left behind."""
    module, rel_pos = layer(causal=True), randomise(MODULES['T5'](True).double())
    hooked = []
    with flexing:
        flexing.patch.setattr(flex, 'try_out', try_out)
        for length, expected in ((5, 2), (5, 1), (6, 2), (7, 1), (5, 1)):
            flexing.calls = 0
            x = randn(2, length, 12).requires_grad_()
            x.register_hook(hooked.append)
            module(x, rel_pos=rel_pos)
            assert flexing.calls == expected
            assert not hooked and rel_pos.relative_attention_bias.weight.grad is None
        with torch.no_grad():
            for expected in (2, 1):
                flexing.calls = 0
                module(x, rel_pos=rel_pos)
                assert flexing.calls == expected
        flex.works.clear()
        for flags in ({}, dict(head_learned_sink=True), dict(kv_heads=2)):
            flexing.calls = 0
            layer(**flags)(randn(2, 5, 12), attn_bias=randn(5, 5))
            assert flexing.calls == 2  # other kinds
    assert not flexing.said and len(flex.works) == 0


@pytest.mark.parametrize('flags', [{}, dict(heads=2, project_out=False)], ids=str)
def test_in_a_checkpoint(flexing, flags):
    """It counts what is saved, and stops once it has all of that, in the midst of the kernel if that comes last."""
    module, rel_pos = layer(causal=True, **flags), randomise(MODULES['T5'](True).double())
    rel_pos.relative_attention_bias.weight.data = rel_pos.relative_attention_bias.weight.data[:, : module.heads]

    def outcome(module, x):
        x = x.detach().requires_grad_()
        out = checkpoint(lambda x: module(x, rel_pos=rel_pos), x, use_reentrant=False)
        return out, torch.autograd.grad(out.square().sum(), [x, *rel_pos.parameters(), *module.parameters()])

    def counted(q, k, v, call, on, forms):  # in place of FlexAttention: uncompiled, that saves what its compiler traces
        flexing.calls += 1
        return dense.run_fused(q, k, v, call.combine(), on)

    flexing.values |= dict(run_flex=counted, try_out=try_out)
    compare(flexing, outcome, module, randn(2, N, 12))
    assert flexing.calls == 3


# masks that are kept


@pytest.mark.costly
def test_masks_are_kept(flexing):
    """For all layers and calls with the same lengths and tensors, as long as nobody changes those."""
    net, x = (
        Decoder(dim=12, depth=2, heads=2, attn_dim_head=6, attn_max_attend_past=4, attn_num_mem_kv=1).double(),
        randn(2, N, 12),
    )
    built, create = [], flex.count_visible_blocks
    mask = PADDED['right'].clone()
    attn_mask = randn(N, N) > -1
    with flexing:
        flexing.patch.setattr(flex, 'count_visible_blocks', lambda *args: built.append(args) or create(*args))

        def count(**inputs):
            before = len(built)
            net(inputs.pop('x', x), **inputs)
            return len(built) - before

        assert [count(), count(), count(x=randn(2, 5, 12)), count()] == [1, 0, 1, 0]
        assert [count(mask=mask), count(mask=mask), count(mask=mask.clone())] == [1, 0, 1]
        before = net(x, mask=mask)
        mask[0, 2] = False
        assert count(mask=mask) == 1
        changed = net(x, mask=mask)
        assert not torch.allclose(before, changed)
        with torch.inference_mode():
            assert count() == 1
        assert len(flex.known_masks) == flex.KEPT_MASKS
        flexing.patch.setattr(flex, 'KEPT_BYTES', attn_mask.numel() - 1)
        assert [count(attn_mask=attn_mask), count(attn_mask=attn_mask)] == [2, 2]
        x.requires_grad_()
        net(x).sum().backward()  # what was kept in inference mode cannot be saved for this
    assert not flexing.said
    assert_close(changed, by_formula(net)(x, mask=mask))


# compiled


COMPILED = {
    'T5, grouped': (Decoder, dict(rel_pos_bias=True, attn_kv_heads=2)),
    'clamp, window, alibi, memory': (
        Decoder,
        dict(attn_softclamp_logits=True, attn_logit_softclamp_value=2.0, attn_max_attend_past=40, alibi_pos_bias=True,
             attn_num_mem_kv=3),
    ),
    'gates': (Encoder, dict(attn_data_dependent_alibi=True)),
    'sink, dynamic': (Decoder, dict(attn_head_learned_sink=True, dynamic_pos_bias=True)),
    'patterns': (Decoder, dict(attn_sparse_pattern=Mix((Sliding(40) | Global(2), BlockLocal(32))))),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.filterwarnings('ignore::DeprecationWarning', 'ignore::FutureWarning', 'ignore::UserWarning')
@pytest.mark.parametrize(
    ('name', 'lengths'),
    [
        ('T5, grouped', (200, 300, 257, 200)),
        ('clamp, window, alibi, memory', (200, 200)),
        ('gates', (200, 200)),
        pytest.param('patterns', (200, 300, 257), marks=pytest.mark.nightly),
    ],
    ids=str,
)  # torch's code for CPUs mistakes the names of more than ten sizes, and has no sums
def test_compiled_forwards(flexing_by_torch, name, lengths):
    """For the first length, then for all others, each of which counts for a limit of its own."""
    (kind, flags), programs, flexing = COMPILED[name], {}, flexing_by_torch
    net = randomise(kind(dim=32, depth=2, heads=4, attn_dim_head=16, **flags)).float().eval()
    del flexing.values['compile_flex']
    flexing.values |= dict(compiled_functions=programs, kinds={})
    with torch._dynamo.config.patch(recompile_limit=2):
        for length in lengths:
            x, mask = randn(2, length, 32).float(), torch.arange(length) < torch.tensor([[length], [length - 70]])
            with torch.no_grad():
                wanted = net(x, mask=mask)
                with flexing:
                    found = net(x, mask=mask)
            assert not flexing.said, flexing.said
            assert_close(found, wanted, tolerance=1e-4)
    assert flexing.calls == 2 * len(lengths)
    shared = [sizes is None for function, _, sizes in programs if function is flex.attention]
    assert shared == [False, True][: len(set(lengths))]


@pytest.mark.skipif(not torch.cuda.is_available(), reason='needs a CUDA device')
@pytest.mark.parametrize('dtype', [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize('name', COMPILED)
def test_on_a_gpu(monkeypatch, logged, name, dtype):
    """Outputs and gradients of the formula, which runs in float32."""
    kind, flags = COMPILED[name]
    net = randomise(kind(dim=64, depth=2, heads=4, attn_dim_head=32, **flags)).float().cuda()
    calls, run_flexed = [], flex.run_flex
    monkeypatch.setattr(flex, 'run_flex', lambda *args: calls.append(1) or run_flexed(*args))
    bound = 1e-3 if dtype == torch.float32 else 0.1
    for length in (256, 333, 400):
        x = randn(2, length, 64).float().cuda()
        mask = torch.arange(length, device='cuda') < torch.tensor([[length], [length - 70]], device='cuda')
        for module in net.modules():
            if isinstance(module, Attention):
                module.flash = None
                module.choose_kernel()
        calls.clear()
        with blocked(64), torch.autocast('cuda', dtype=dtype, enabled=dtype != torch.float32):
            found, grads = layer_outcome(net, x, mask=mask)
        assert calls and not logged
        wanted, wanted_grads = layer_outcome(by_formula(net), x, mask=mask)
        assert_close(found.float(), wanted, tolerance=bound)
        for a, b in zip(grads, wanted_grads, strict=True):
            assert_close(a.float(), b, what='gradient', tolerance=bound)
