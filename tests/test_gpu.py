"""On a GPU: kernels, half precision, compiled training and decoding, caches and serving give the numbers of a CPU.

`TEST_DEVICE=cpu` runs the same on a CPU, as a rehearsal; `TEST_DEVICE=cuda` is the default, and without a GPU all is
skipped by name. `benchmarks/gpu.py correct` keeps a row of each test.
"""

import copy
import os

import pytest
import torch
from law_cases import CASES, each_tensor, gradients, inputs_for, model_of, randomise, refused, run, weighted
from oracles import assert_close
from test_kernels import blocked

from x_transformers import AutoregressiveWrapper, Decoder, Encoder, PagedEngine, TransformerWrapper
from x_transformers.kernels import flex
from x_transformers.patterns import BigBird, Sliding
from x_transformers.x_transformers import Attention

DEVICE = os.environ.get('TEST_DEVICE', 'cuda')
REHEARSAL = DEVICE == 'cpu'
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(DEVICE == 'cuda' and not torch.cuda.is_available(), reason='there is no GPU'),
    pytest.mark.filterwarnings('default'),  # what compilers of torch say is not on trial
]
HALVES = (torch.bfloat16, torch.float16)
# a rehearsal runs the first cases of each test
SOME = {'every': CASES if not REHEARSAL else CASES[:12]}

KINDS = {
    'learned positions': {},
    'like Llama': dict(
        rotary_pos_emb=True, use_rmsnorm=True, ff_glu=True, ff_swish=True, ff_no_bias=True, attn_kv_heads=1
    ),
    'ALiBi': dict(alibi_pos_bias=True),
    'T5 bias': dict(rel_pos_bias=True),
    'dynamic bias': dict(dynamic_pos_bias=True),
    'xPos': dict(rotary_xpos=True),
    'window': dict(attn_max_attend_past=8, rotary_pos_emb=True),
    'sliding pattern': dict(attn_sparse_pattern=Sliding(8)),
    'memory keys': dict(attn_num_mem_kv=2),
    'learned sink': dict(attn_head_learned_sink=True),
    'soft clamp': dict(attn_softclamp_logits=True),
    'queries and keys normed': dict(attn_qk_norm=True),
    'talking heads': dict(attn_pre_talking_heads=True),
    'top-k': dict(attn_sparse_topk=4),
    'forget gates': dict(attn_data_dependent_alibi=True),
    'differential': dict(attn_differential=True),
    'value residuals': dict(add_value_residual=True),
    'shifted tokens': dict(shift_tokens=1),
    'residual streams': dict(num_residual_streams=2),
    'experts': dict(ff_moe_experts=4, ff_glu=True, ff_swish=True, ff_no_bias=True),
    'linear attention': dict(attn_kernel='elu'),
    'delta rule': dict(attn_kernel='elu', attn_kernel_update='delta'),
}


def to_device(value, dtype=None):
    """Tensors of nested values on the device, floating ones in `dtype`."""
    return each_tensor(lambda t: t.to(DEVICE, dtype if t.is_floating_point() else None), value)


def moved(inputs, dtype=None):
    return {name: to_device(value, dtype) for name, value in inputs.items()}


def error(found, wanted):
    """The difference over the norm of what is wanted."""
    found, wanted = found.detach().cpu().double(), wanted.detach().double()
    return ((found - wanted).norm() / wanted.norm().clamp(min=1e-9)).item()


@pytest.fixture
def language_model():
    def build(name, **more):
        torch.manual_seed(0)
        stack = Decoder(**{'dim': 64, 'depth': 2, 'heads': 2, 'attn_dim_head': 32, 'verbose': False, **KINDS[name]})
        net = TransformerWrapper(num_tokens=50, max_seq_len=64, attn_layers=stack, **more)
        return AutoregressiveWrapper(randomise(net, scale=0.2).float()).eval().to(DEVICE)

    return build


def prompts(batch=2, length=6):
    return torch.randint(0, 50, (batch, length), generator=torch.Generator().manual_seed(1)).to(DEVICE)


# numbers of a CPU


@pytest.mark.parametrize('case', SOME['every'], ids=str)
def test_float64_is_that_of_a_cpu(case):
    """Outputs and gradients of every flag."""
    net, inputs = model_of(case), inputs_for(model_of(case), case)
    there = copy.deepcopy(net).to(DEVICE)
    assert_close(run(there, moved(inputs)).cpu(), run(net, inputs))
    wanted = gradients(net, inputs)
    for name, grad in gradients(there, moved(inputs)).items():
        if grad is not None:
            assert_close(grad.cpu(), wanted[name], f'gradient of {name}')


def ways():
    """Ways to compute attention, each a context: the choice of the library, blocks of queries, FlexAttention."""
    yield 'default', False, ()
    yield 'blocks', True, ()
    yield 'flex', True, (DEVICE,)


@pytest.mark.parametrize('dtype', HALVES, ids=str)
@pytest.mark.parametrize('case', SOME['every'], ids=str)
def test_kernels_in_half_precision(case, dtype, monkeypatch):
    """Outputs and gradients by autocast, by each kernel, near those of float64 by the formula on a CPU."""
    plain = case.with_keywords(attn_flash=False)
    truth = model_of(plain if refused(plain) is None else case)
    inputs = inputs_for(truth, case)
    wanted = run(truth, inputs)
    grads = torch.autograd.grad(weighted(wanted), list(truth.parameters()), allow_unused=True)
    for way, in_blocks, devices in ways():
        if way == 'flex' and flex.load_flex() is None:
            continue
        monkeypatch.setattr(flex, 'DEVICES', devices)
        net = copy.deepcopy(model_of(case)).float().to(DEVICE)
        for module in net.modules():
            if isinstance(module, Attention):
                module.choose_kernel()
        given = moved(inputs, torch.float32)
        with blocked(4) if in_blocks else torch.enable_grad(), torch.autocast(DEVICE, dtype=dtype):
            found = run(net, given)
        own = torch.autograd.grad(weighted(found.float()), list(net.parameters()), allow_unused=True)
        assert error(found, wanted) < 0.1, way
        for (name, _), a, b in zip(net.named_parameters(), own, grads, strict=True):
            if a is not None and b is not None and b.norm() > 1e-6:
                assert a.isfinite().all() and error(a, b) < 0.5, (way, name)


# compiled


@pytest.mark.parametrize('name', KINDS)
def test_compiled_training(name, language_model):
    """Loss and gradients of a compiled model are those of the model."""
    torch._dynamo.reset()
    lm, ids = language_model(name), prompts(length=32)
    wanted = lm(ids)
    grads = torch.autograd.grad(wanted, list(lm.parameters()), allow_unused=True)
    found = torch.compile(lm, backend='aot_eager' if REHEARSAL else 'inductor')(ids)
    own = torch.autograd.grad(found, list(lm.parameters()), allow_unused=True)
    assert_close(found, wanted, tolerance=1e-4)
    for a, b in zip(own, grads, strict=True):
        if b is not None:
            assert error(a, b.cpu()) < 1e-3 or (a - b).abs().max() < 1e-5


@pytest.mark.parametrize('name', KINDS)
def test_generate_with_captured_steps(name, language_model):
    """`compile=True`, which captures CUDA graphs, gives the tokens of the eager way."""
    torch._dynamo.reset()
    lm = language_model(name)
    wanted = lm.generate(prompts(), 24, temperature=0.0)
    assert torch.equal(lm.generate(prompts(), 24, temperature=0.0, compile='eager' if REHEARSAL else True), wanted)


# generation and caches


@pytest.mark.parametrize('name', [name for name in KINDS if name not in ('linear attention', 'delta rule')])
def test_paged_engine(name, language_model):
    """The tokens of `generate`, for prompts of unequal length."""
    lm = language_model(name)
    asked = [prompts(1, length)[0] for length in (3, 7, 5)]
    try:
        engine = PagedEngine(lm, 64, 4)
    except ValueError as refusal:
        pytest.skip(str(refusal)[:100])
    numbers = [engine.add(prompt, 9, temperature=0.0) for prompt in asked]
    found = engine.run()
    for number, prompt in zip(numbers, asked, strict=True):
        assert torch.equal(found[number].tokens.to(DEVICE), lm.generate(prompt, 9, temperature=0.0))


@pytest.mark.parametrize('name', ['learned positions', 'like Llama', 'window', 'delta rule'])
def test_caches_move_between_devices(name, language_model, tmp_path):
    """A cache that was saved on one device goes on on the other."""
    lm, ids = language_model(name), prompts(length=10)
    wanted = lm.net(ids)[:, -1]
    for first, second in ((DEVICE, 'cpu'), ('cpu', DEVICE)):
        net = copy.deepcopy(lm.net).to(first)
        _, cache = net(ids[:, :7].to(first), return_intermediates=True)
        cache.cache.save(tmp_path / 'cache') if hasattr(cache, 'cache') else cache.save(tmp_path / 'cache')
        net = net.to(second)
        again = type(cache.cache if hasattr(cache, 'cache') else cache).load(tmp_path / 'cache', device=second)
        out = net(ids.to(second), cache=again, return_intermediates=True)[0][:, -1]
        assert_close(out.to(DEVICE), wanted, tolerance=1e-3)


@pytest.mark.parametrize('dtype', HALVES, ids=str)
@pytest.mark.parametrize('name', KINDS)
def test_autocast(name, dtype, language_model):
    """The loss is near that in float32, and every gradient is finite."""
    lm, ids = language_model(name), prompts(length=32)
    wanted = lm(ids)
    with torch.autocast(DEVICE, dtype=dtype):
        found = lm(ids)
    found.backward()
    assert abs(found.item() - wanted.item()) < 0.05 * wanted.item()
    assert all(p.grad is None or p.grad.isfinite().all() for p in lm.parameters())


# ways of their own on this device


@pytest.mark.parametrize(
    'flags',
    [
        dict(ff_moe_experts=4, ff_glu=True, ff_swish=True, ff_no_bias=True),
        dict(attn_max_attend_past=32),
        dict(attn_sparse_pattern=Sliding(32)),
        dict(attn_sparse_pattern=BigBird(block=16)),
        dict(attn_cluster='lsh', attn_cluster_size=16),
        dict(rotary_pos_emb=True),
    ],
    ids=lambda flags: next(iter(flags)),
)
def test_long_sequences_and_documents(flags):
    """Grouped experts, windows and documents at a length where kernels of their own run."""
    length = 256 if REHEARSAL else 1024
    torch.manual_seed(0)
    stack = Encoder if isinstance(flags.get('attn_sparse_pattern'), BigBird) else Decoder
    net = randomise(stack(dim=64, depth=1, heads=2, attn_dim_head=32, verbose=False, **flags).double(), scale=0.2)
    x, ids = torch.randn(1, length, 64, dtype=torch.float64), torch.arange(length)[None] // (length // 4)
    inputs = {'document_ids': ids} if not {'attn_sparse_pattern', 'attn_cluster'} & flags.keys() else {}
    wanted = net(x, **inputs)
    there = copy.deepcopy(net).float().to(DEVICE)
    found = there(x.float().to(DEVICE), **{name: t.to(DEVICE) for name, t in inputs.items()})
    assert error(found, wanted) < 1e-3
