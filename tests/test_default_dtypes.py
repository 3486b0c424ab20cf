"""What a model computes follows from the dtypes of its weights and inputs: another default dtype of torch changes no
number, and nothing needs float64 where the user gave none, as on devices that have none.
"""

import copy

import pytest
import torch
from law_cases import CASES, each_tensor, inputs_for, model_of, run, weighted
from sweeps import is_late, nightly
from test_padding_of_wrappers import COUNTING
from test_wrapper_laws import SUBJECTS
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map
from training_laws import ids_of, net_of, seeded

from x_transformers import AutoregressiveWrapper, PagedEngine
from x_transformers.core import modes

DEFAULTS = (torch.bfloat16, torch.float16, torch.float64)
MASK = torch.arange(7) < torch.tensor([[7], [5], [3]])


def in_float(t):
    return t.float() if torch.is_tensor(t) and t.is_floating_point() else t


def tensors(found):
    return [t.detach() for t in tree_leaves(found) if torch.is_tensor(t)]


def of_subject(name, default):
    """A loss in training with its gradients, one in evaluation, and what is generated."""
    subject, generator = SUBJECTS[name], torch.Generator().manual_seed(0)
    model, inputs = seeded(lambda _: subject.build(), None).float(), tree_map(in_float, subject.inputs)
    with torch.no_grad():
        for p in model.parameters():
            p.copy_(torch.randn(p.shape, generator=generator, dtype=torch.float32) * 0.3)
    torch.set_default_dtype(default)
    loss = seeded(lambda m: subject.call(m, **inputs), model.train())
    if loss.requires_grad:
        loss.float().sum().backward()
    found = [loss, *(p.grad for p in model.parameters() if p.grad is not None)]
    found.append(seeded(lambda m: subject.call(m, **inputs), model.eval()))
    if subject.generate:
        found.append(seeded(lambda m: subject.generate(m, **inputs), model))
    return tensors(found)


def of_case(case, default):
    """Outputs in evaluation, with padding and in training, gradients, and what was kept in a cache."""
    net = copy.deepcopy(model_of(case)).float()
    inputs = {name: each_tensor(in_float, value) for name, value in inputs_for(net, case).items()}
    torch.set_default_dtype(default)
    found = [seeded(lambda m: run(m, inputs), net), seeded(lambda m: run(m, inputs, mask=MASK), net)]
    out = seeded(lambda m: run(m, inputs), net.train())
    grads = torch.autograd.grad(weighted(out.float()), list(net.parameters()), allow_unused=True)
    return tensors([*found, out, *(grad for grad in grads if grad is not None)])


def same_law(of, what, default):
    wanted, found = of(what, torch.float32), of(what, default)
    torch.set_default_dtype(torch.float32)
    assert len(found) == len(wanted)
    for one, other in zip(found, wanted, strict=True):
        assert one.dtype == other.dtype and torch.equal(one.nan_to_num(7.0), other.nan_to_num(7.0))


def now(law, each):
    return [one if not is_late(60, law, one) else nightly(*one) for one in each]


@pytest.mark.parametrize('name, default', now('wrappers', [(name, d) for name in SUBJECTS for d in DEFAULTS]))
def test_wrappers_in_another_default_dtype(name, default):
    same_law(of_subject, name, default)


HERE = ('plain', 'rotary_xpos', 'attn_cluster')


@pytest.mark.parametrize(
    'case, default',
    [
        (case, d) if case.name in HERE and d == torch.float16 else nightly(case, d)
        for case in (*CASES, *COUNTING[:6])
        for d in DEFAULTS
    ],
    ids=str,
)
def test_flags_in_another_default_dtype(case, default):
    same_law(of_case, case, default)


# what chooses tokens, each with its numbers

OPTIONS = {
    'penalties': dict(repetition_penalty=1.2, presence_penalty=0.3, frequency_penalty=0.2),
    'bias': dict(logit_bias={3: 1.5}, banned_tokens=[4]),
    'top k': dict(temperature=0.7, filter_logits_fn='top_k', filter_kwargs=dict(k=4)),
    'top p': dict(temperature=1.3, filter_logits_fn='top_p', filter_kwargs=dict(thres=0.8)),
    'min p': dict(temperature=0.9, filter_logits_fn='min_p'),
    'top a': dict(temperature=0.9, filter_logits_fn='top_a'),
    'entmax': dict(temperature=0.9, filter_logits_fn='entmax'),
    'lengths': dict(prompt_lens=torch.tensor([2, 5]), return_log_probs=True),
    'samples': dict(temperature=1.0, num_samples=2, return_log_probs=True),
    'an end': dict(eos_token=3, temperature=1.0),
    'without a cache': dict(cache_kv=False, temperature=1.0),
}


def of_generation(option, default):
    model = net_of(max_seq_len=32).float().eval()
    with torch.no_grad():
        generator = torch.Generator().manual_seed(0)
        for p in model.parameters():
            p.copy_(torch.randn(p.shape, generator=generator, dtype=torch.float32) * 0.3)
    torch.set_default_dtype(default)
    wrapper, prompts = AutoregressiveWrapper(model), ids_of(2, 5)
    options = {'temperature': 0.0, **OPTIONS[option]} if option in OPTIONS else {}
    if option == 'beams':
        return tensors(wrapper.beam_search(prompts, 5, beams=3))
    if option == 'speculative':
        return tensors(seeded(lambda m: m.generate(prompts, 5, temperature=1.0, amateur_model=m.net), wrapper))
    if option == 'engine':
        engine = PagedEngine(wrapper, 16)
        for row in prompts:
            engine.add(row.tolist(), 4, repetition_penalty=1.1, temperature=0.0)
        return [done.tokens for _, done in sorted(engine.run().items())]
    return tensors(seeded(lambda m: m.generate(prompts, 5, **options), wrapper))


@pytest.mark.parametrize(
    'option', ['penalties', *map(nightly, [*OPTIONS][1:]), *map(nightly, ('beams', 'speculative', 'engine'))]
)
def test_choosing_in_another_default_dtype(option):
    for default in DEFAULTS:
        same_law(of_generation, option, default)


# a device without float64


class NoFloat64(TorchDispatchMode):
    """Refuse what a device without float64 has not."""

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        found = function(*args, **(kwargs or {}))
        for t in tree_leaves(found):
            if torch.is_tensor(t) and t.dtype in (torch.float64, torch.complex128):
                raise TypeError(f'{function} made {t.dtype}, which this device does not have')
        return found


@pytest.fixture
def without_float64(monkeypatch):
    """Let the CPU be a device without float64."""
    monkeypatch.setattr(modes, 'WITHOUT_FLOAT64', {'cpu', 'mps'})
    return NoFloat64()


@pytest.mark.parametrize('name', [name if name in ('vectors', 'classes') else nightly(name) for name in SUBJECTS])
def test_wrappers_without_float64(name, without_float64):
    if name == 'spans':
        pytest.skip('its lengths are computed on the CPU, by name, whatever the device')
    subject = SUBJECTS[name]
    inputs = tree_map(in_float, subject.inputs)
    with without_float64:
        model = subject.build()
        if name == 'entropies':
            found = model(**inputs)
            assert torch.is_tensor(found)
            return
        loss = seeded(lambda m: subject.call(m, **inputs), model.train())
        if loss.requires_grad:
            loss.sum().backward()
        seeded(lambda m: subject.call(m, **inputs), model.eval())
        if subject.generate:
            seeded(lambda m: subject.generate(m, **inputs), model)


@pytest.mark.parametrize(
    'case', [case if case.name in ('plain', 'rotary_scaling', 'attn_cluster') else nightly(case)
             for case in (*CASES, *COUNTING[:6])], ids=str)  # fmt: skip
def test_flags_without_float64(case, without_float64):
    net = copy.deepcopy(model_of(case)).float()
    inputs = {name: each_tensor(in_float, value) for name, value in inputs_for(net, case).items()}
    with without_float64:
        run(net, inputs, mask=MASK)
        out = run(net.train(), inputs)
        torch.autograd.grad(out.sum(), list(net.parameters()), allow_unused=True)


# a table of biases is added up on the CPU, by name, whatever the device
@pytest.mark.parametrize(
    'option', ['penalties', *map(nightly, [*OPTIONS][2:]), *map(nightly, ('beams', 'speculative'))]
)
def test_choosing_without_float64(option, without_float64):
    with without_float64:
        of_generation(option, torch.float32)


def test_the_device_is_noticed(without_float64):
    """The stand-in refuses what it should, so that the laws above mean something."""
    with without_float64, pytest.raises(TypeError, match='does not have'):
        torch.ones(2).double()
