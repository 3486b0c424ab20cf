"""Losses of tokens in chunks: the plain formula, the memory, and everything that a wrapper's loss may meet."""

import importlib
import itertools

import pytest
import torch
import torch.nn.functional as F
from building import stacks
from functorch.compile import make_boxed_func
from torch import nn
from torch._dynamo.backends.common import aot_autograd
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import x_transformers.training.token_loss as token_loss
from x_transformers import (
    DPO,
    AutoregressiveWrapper,
    Decoder,
    EarlyExitWrapper,
    Encoder,
    NonAutoregressiveWrapper,
    TransformerWrapper,
    XLAutoregressiveWrapper,
    XTransformer,
)
from x_transformers.belief_state_wrapper import BeliefStateWrapper
from x_transformers.features import MODEL, ModelFeature
from x_transformers.flags import ConfigError, flag
from x_transformers.free_transformer import FreeTransformer
from x_transformers.full_bandwidth import FullBandwidth
from x_transformers.gpt_lejepa import LatentAutoregressive
from x_transformers.gpt_vae import GPTVAE
from x_transformers.multi_input import MultiInputAutoregressiveWrapper, MultiInputTransformerWrapper
from x_transformers.next_latent_wrapper import NextLatentWrapper
from x_transformers.recirculation import Recirculation
from x_transformers.training import linear_cross_entropy
from x_transformers.xm_latent_decoder import XMLatentDecoder
from x_transformers.xval import XValAutoregressiveWrapper, XValTransformerWrapper

VOCAB, DIM, LENGTH = 257, 8, 12


@pytest.fixture
def few(monkeypatch):
    """Chunks of five tokens: no number of tokens here is a multiple of it."""
    monkeypatch.setattr(token_loss, 'tokens_at_a_time', lambda classes, like: 5)


# the function


def operands(n, bias=True, dtype=torch.float64, classes=7, dim=5, ignored=()):
    gen = torch.Generator().manual_seed(n)
    hidden, weight = (torch.randn(rows, dim, generator=gen, dtype=torch.float64) for rows in (n, classes))
    offset = torch.randn(classes, generator=gen, dtype=torch.float64) if bias else None
    targets = torch.randint(classes, (n,), generator=gen)
    targets[list(ignored)] = -1
    inputs = [None if t is None else t.to(dtype).requires_grad_() for t in (hidden, weight, offset)]
    return inputs, targets


def formula(hidden, weight, bias, targets, smoothing=0.0, z_weight=0.0):
    """torch's cross entropy of all logits, plus that of the z-loss: one loss per token; -1 is ignored."""
    logits = F.linear(hidden, weight, bias)
    losses = F.cross_entropy(logits, targets, ignore_index=-1, label_smoothing=smoothing, reduction='none')
    return losses + z_weight * (logits.exp().sum(dim=-1).log() ** 2) * (targets != -1)


def reduced(losses, targets, reduction):
    count = (targets != -1).sum().clamp(min=1)
    return {'none': losses, 'sum': losses.sum(), 'mean': losses.sum() / count}[reduction]


@pytest.mark.parametrize('n', [1, 2, 3, 7, 9])
def test_values_and_gradients_are_those_of_the_formula(few, n):
    choices = (False, True), ((), (0, 1), range(n)), (0.0, 0.3), (0.0, 0.2), ('mean', 'sum', 'none')
    for bias, ignored, smoothing, z_weight, reduction in itertools.product(*choices):
        case = f'{bias=}, {ignored=}, {smoothing=}, {z_weight=}, {reduction=}'
        inputs, targets = operands(n, bias, ignored=[at for at in ignored if at < n])
        options = dict(ignore_index=-1, label_smoothing=smoothing, z_loss_weight=z_weight, reduction=reduction)
        loss = linear_cross_entropy(*inputs[:2], targets, inputs[2], **options)
        expected = reduced(formula(*inputs, targets, smoothing, z_weight), targets, reduction)
        torch.testing.assert_close(loss, expected, msg=lambda said, case=case: f'{case}: {said}')
        upstream = torch.linspace(-2, 3, expected.numel(), dtype=torch.float64).view(expected.shape)
        wanted = [t for t in inputs if t is not None]
        goal = torch.autograd.grad(expected, wanted, upstream)
        for _ in range(2):  # the second time the gradients are formed again
            found = torch.autograd.grad(loss, wanted, upstream, retain_graph=True)
            torch.testing.assert_close(found, goal, msg=lambda said, case=case: f'{case}: {said}')
            assert [g.is_contiguous() for g in found] == [True] * len(found), case


def test_ignored_targets_have_no_gradient_at_all(few):
    inputs, targets = operands(7, ignored=range(7))
    loss = linear_cross_entropy(*inputs[:2], targets, inputs[2], ignore_index=-1)
    loss.backward()
    assert loss == 0 and all((t.grad == 0).all() for t in inputs)


def test_no_tokens(few):
    inputs, targets = operands(0)
    for reduction in ('mean', 'sum', 'none'):
        loss = linear_cross_entropy(*inputs[:2], targets, inputs[2], reduction=reduction)
        assert loss.shape == ((0,) if reduction == 'none' else ()) and loss.sum() == 0
        found = torch.autograd.grad(loss.sum(), inputs)
        assert [g.shape for g in found] == [t.shape for t in inputs] and all((g == 0).all() for g in found)


def test_leading_axes(few):
    inputs, targets = operands(12, ignored=(3, 4))
    flat = linear_cross_entropy(*inputs[:2], targets, inputs[2], ignore_index=-1, reduction='none')
    folded = linear_cross_entropy(
        inputs[0].view(2, 3, 2, 5), inputs[1], targets.view(2, 3, 2), inputs[2], ignore_index=-1, reduction='none'
    )
    torch.testing.assert_close(folded, flat.view(2, 3, 2))


def test_weights_of_tokens(few):
    inputs, targets = operands(8, ignored=(2,))
    weights = torch.tensor([0.0, 1.0, 5.0, -2.0, 0.5, 0.0, 3.0, 1e-3], dtype=torch.float64)
    loss = linear_cross_entropy(*inputs[:2], targets, inputs[2], ignore_index=-1, reduction='sum', weights=weights)
    expected = (formula(*inputs, targets) * weights).sum()
    torch.testing.assert_close(loss, expected)
    torch.testing.assert_close(torch.autograd.grad(loss, inputs), torch.autograd.grad(expected, inputs))


@pytest.mark.parametrize('reduction', ['mean', 'none'])
def test_gradcheck_of_first_and_second_order(few, reduction):
    inputs, targets = operands(4, ignored=(1,))

    def function(hidden, weight, bias):
        options = dict(ignore_index=-1, label_smoothing=0.1, z_loss_weight=0.05, reduction=reduction)
        return linear_cross_entropy(hidden, weight, targets, bias, **options)

    assert torch.autograd.gradcheck(function, inputs)
    assert torch.autograd.gradgradcheck(function, inputs)


@pytest.mark.parametrize('learns', [(True, False, False), (False, True, False), (False, False, True)])
@pytest.mark.parametrize('reduction', ['mean', 'none'])
def test_only_what_is_asked_for_gets_a_gradient(few, learns, reduction):
    inputs, targets = operands(5)
    for t, learn in zip(inputs, learns, strict=True):
        t.requires_grad_(learn)
    linear_cross_entropy(*inputs[:2], targets, inputs[2], reduction=reduction).sum().backward()
    assert [t.grad is not None for t in inputs] == list(learns)
    with torch.no_grad():
        assert not linear_cross_entropy(*inputs[:2], targets, inputs[2], reduction=reduction).requires_grad


def test_accumulated_gradients(few):
    inputs, targets = operands(9)
    for part in (slice(0, 4), slice(4, 9)):
        loss = linear_cross_entropy(inputs[0][part], inputs[1], targets[part], inputs[2], reduction='sum')
        (loss / 9).backward()
    goal = torch.autograd.grad(formula(*inputs, targets).mean(), inputs)
    torch.testing.assert_close([t.grad for t in inputs], list(goal))


def test_transforms_of_functions(few):
    (hidden, weight, _), targets = operands(5, bias=False)
    hidden, weight = hidden.detach(), weight.detach()

    def loss(hidden, weight):
        return linear_cross_entropy(hidden, weight, targets)

    def plain(hidden, weight):
        return formula(hidden, weight, None, targets).mean()

    several = torch.stack((hidden, -hidden))
    torch.testing.assert_close(torch.func.grad(loss)(hidden, weight), torch.func.grad(plain)(hidden, weight))
    torch.testing.assert_close(
        torch.func.vmap(loss, (0, None))(several, weight), torch.stack([plain(h, weight) for h in several])
    )
    tangent = torch.func.jvp(lambda h: loss(h, weight), (hidden,), (hidden,))[1]
    torch.testing.assert_close(tangent, torch.func.jvp(lambda h: plain(h, weight), (hidden,), (hidden,))[1])


@pytest.mark.parametrize(
    'change, message',
    [
        (dict(targets=torch.zeros(3, dtype=torch.long)), '`hidden` got the shape'),
        (dict(weight=torch.zeros(7, 6)), '`hidden` got the shape'),
        (dict(bias=torch.zeros(6)), '`bias` must '),
        (dict(label_smoothing=1.5), r'`label_smoothing` must .*got 1.5'),
        (dict(z_loss_weight=-1.0), r'`z_loss_weight` must .*got -1.0'),
        (dict(reduction='max'), r"`reduction` must .*got 'max'"),
        (dict(weights=torch.ones(4)), '`weights` must '),
        (dict(weights=torch.ones(3), reduction='sum'), '`weights` must '),
    ],
)
def test_refusals(change, message):
    given = dict(hidden=torch.zeros(4, 5), weight=torch.zeros(7, 5), targets=torch.zeros(4, dtype=torch.long))
    with pytest.raises(ValueError, match=message):
        linear_cross_entropy(**{**given, **change})


def test_a_target_out_of_range():
    for wrong in (7, -2):
        with pytest.raises(IndexError, match=f'Target {wrong} is out of bounds'):
            linear_cross_entropy(torch.zeros(2, 5), torch.zeros(7, 5), torch.tensor([0, wrong]))


# precision


@pytest.mark.parametrize('dtype', [torch.bfloat16, torch.float16])
@pytest.mark.parametrize('way', ['autocast', 'weights'])
def test_half_precision(few, dtype, way):
    """Near float64, with errors of the rounding of inputs; the sums over tokens lose nothing."""
    exact, targets = operands(64, classes=50, dim=16, ignored=(0, 5))
    inputs = [t.detach().to(torch.float32 if way == 'autocast' else dtype).requires_grad_() for t in exact]
    with torch.autocast('cpu', dtype, enabled=way == 'autocast'):
        loss = linear_cross_entropy(*inputs[:2], targets, inputs[2], ignore_index=-1)
    assert loss.dtype == torch.float32
    rounded = [t.to(dtype).double().requires_grad_() for t in inputs]
    goal = reduced(formula(*rounded, targets), targets, 'mean')
    scale = 2.0**14
    (loss * scale).backward()  # as a scaler of gradients does
    torch.testing.assert_close(loss.double(), goal, rtol=1e-2, atol=1e-2)
    for t, expected in zip(inputs, torch.autograd.grad(goal, rounded), strict=True):
        assert t.grad.dtype == t.dtype
        error = (t.grad.double() / scale - expected).norm() / expected.norm()
        assert error < (2e-2 if dtype == torch.bfloat16 else 4e-3)


def test_the_gradient_of_weights_is_summed_in_float32(monkeypatch):
    """Tokens that are alike, one at a time: in bfloat16 the sum would stop growing at 256 times a part of it."""
    monkeypatch.setattr(token_loss, 'tokens_at_a_time', lambda classes, like: 1)
    hidden = torch.ones(600, 4, dtype=torch.bfloat16)
    weight = torch.zeros(2, 4, dtype=torch.bfloat16, requires_grad=True)
    linear_cross_entropy(hidden, weight, torch.zeros(600, dtype=torch.long), reduction='sum').backward()
    torch.testing.assert_close(weight.grad.float(), torch.tensor([[-300.0], [300.0]]).expand(2, 4))


@pytest.mark.parametrize('fails', [torch.nan, torch.inf])
def test_what_counts_nothing_may_be_no_number(few, fails):
    hidden, weight = torch.randn(5, 4, dtype=torch.double), torch.randn(7, 4, dtype=torch.double)
    hidden[2], targets = fails, torch.arange(5)
    weights = torch.tensor([0.5, 2.0, 0.0, 1.0, 3.0])
    kept = [0, 1, 3, 4]
    losses = F.cross_entropy(hidden[kept] @ weight.T, targets[kept], reduction='none')
    found = linear_cross_entropy(hidden, weight, targets, reduction='sum', weights=weights)
    torch.testing.assert_close(found, (losses * weights[kept]).sum())


def test_small_shares_in_half_precision(few):
    """A mean over very many targets: what each counts is too small for float16, the gradients are not."""
    inputs, targets = operands(6, bias=False, dtype=torch.float16)
    weights = torch.full((6,), 1e-8)
    linear_cross_entropy(*inputs[:2], targets, reduction='sum', weights=weights).mul(1e8).backward()
    rounded = [t.detach().double().requires_grad_() for t in inputs[:2]]
    goal = torch.autograd.grad(formula(*rounded, None, targets).sum(), rounded)
    for t, expected in zip(inputs[:2], goal, strict=True):
        torch.testing.assert_close(t.grad.double(), expected, rtol=2e-2, atol=5e-3)


# wrappers, on small vocabularies of many more tokens than features


stack_of = stacks(dim=DIM, depth=1, heads=2, attn_dim_head=32, ff_mult=1, rotary_pos_emb=True, verbose=False)


def net_of(kind=Decoder, stack=None, **options):
    torch.manual_seed(0)
    net = TransformerWrapper(
        **{**dict(num_tokens=VOCAB, max_seq_len=LENGTH, attn_layers=stack_of(kind, **(stack or {}))), **options}
    )
    for p in net.parameters():
        p.data.add_(torch.randn_like(p) * 0.3)
    return net


class LowRank(nn.Module):
    """A linear map and a small change of it, as adapters have."""

    by_token = True

    def __init__(self, base, rank=2):
        super().__init__()
        self.base, self.calls = base.requires_grad_(False), []
        self.down, self.up = (
            nn.Linear(base.in_features, rank, bias=False),
            nn.Linear(rank, base.out_features, bias=False),
        )

    def forward(self, x):
        self.calls.append(x.shape[:-1].numel())
        return self.base(x) + self.up(self.down(x))


def adapted():
    net = net_of()
    net.to_logits = LowRank(net.to_logits)
    return net


def ids_of(*shape, ignored=True):
    ids = torch.randint(1, VOCAB, shape, generator=torch.Generator().manual_seed(1))
    if ignored:
        ids[0, 3:6] = -100
    return ids


def language(net, **options):
    return AutoregressiveWrapper(net, **options), lambda model: model(ids_of(2, LENGTH))


def preferences():
    prompt = torch.zeros(2, LENGTH, dtype=torch.bool)
    prompt[:, :5] = True
    model = DPO(net_of())
    for p in model.parameters():
        p.data.add_(torch.randn_like(p) * 0.05)
    one, other = ids_of(2, LENGTH, ignored=False), ids_of(2, LENGTH, ignored=False).flip(1)
    return model, lambda model: model(one, other, prompt_mask=prompt)


def streams():
    torch.manual_seed(0)
    net = MultiInputTransformerWrapper(num_tokens=dict(a=VOCAB, b=VOCAB), max_seq_len=LENGTH, attn_layers=stack_of())
    return MultiInputAutoregressiveWrapper(net), lambda model: model(
        dict(a=ids_of(2, LENGTH), b=ids_of(2, LENGTH).flip(1))
    )


def numbers(**options):
    torch.manual_seed(0)
    net = XValTransformerWrapper(
        num_tokens=VOCAB, max_seq_len=LENGTH, numerical_token_id=3, attn_layers=stack_of(), **options
    )
    values = torch.randn(2, LENGTH, generator=torch.Generator().manual_seed(2))
    return XValAutoregressiveWrapper(net), lambda model: model(ids_of(2, LENGTH), values)


def passes():
    net = net_of(stack=dict(depth=2, depth_scale_residual=True), tie_embedding=True, post_emb_norm=True)
    return FullBandwidth(net), lambda model: model(ids_of(2, LENGTH))


def encoded():
    torch.manual_seed(0)
    sizes = dict(num_tokens=VOCAB, max_seq_len=LENGTH, depth=1, heads=2, attn_dim_head=8)
    model = XTransformer(dim=DIM, **{f'{side}_{k}': v for side in ('enc', 'dec') for k, v in sizes.items()})
    return model, lambda model: model(ids_of(2, 7, ignored=False), ids_of(2, LENGTH))


def free():
    torch.manual_seed(0)
    sizes = dict(num_tokens=VOCAB, dim=DIM, dec_head_depth=1, dec_tail_depth=1, heads=2, attn_dim_head=32)
    model = FreeTransformer(**sizes, latent_bits=3, max_seq_len=LENGTH, pad_id=0, verbose=False)
    return model, lambda model: model(ids_of(2, LENGTH, ignored=False))


def latent():
    torch.manual_seed(0)
    sizes = dict(num_tokens=VOCAB, dim=DIM, depth=1, enc_depth=1, max_seq_len=LENGTH, heads=2, attn_dim_head=8)
    return GPTVAE(**sizes, verbose=False), lambda model: model(ids_of(2, LENGTH, ignored=False))


def hidden_tokens():
    model = NonAutoregressiveWrapper(net_of(Encoder), mask_id=0)
    return model, lambda model: model(ids_of(2, LENGTH, ignored=False)).loss


def beliefs(**options):
    model = BeliefStateWrapper(net_of(), **options)
    return model, lambda model: model(ids_of(1, 10, ignored=False))


def wrapped(cls, net=None, **options):
    net = net_of() if net is None else net
    return cls(net, **options), lambda model: model(ids_of(2, LENGTH))


def own_head():
    return nn.Sequential(nn.Linear(DIM, 2 * DIM), nn.GELU(), nn.Linear(2 * DIM, VOCAB))


LOOPED = dict(stack=dict(pre_and_post_norm=True), looped=True, max_looped_steps=2)
CASES = {
    'language': lambda: language(net_of()),
    'language, smoothed': lambda: language(net_of(), label_smoothing=0.1, z_loss_weight=1e-2),
    'language, entmax': lambda: language(net_of(), entmax_loss_alpha=1.5),
    'language, hidden keys': lambda: language(net_of(), mask_prob=0.2),
    'tied': lambda: language(net_of(tie_embedding=True)),
    'tied, unit length': lambda: language(net_of(tie_embedding=True, l2norm_embed=True, tie_embedding_scale=2.0)),
    'heads': lambda: language(net_of(num_output_heads=2)),
    'mixture': lambda: language(net_of(mixture_of_softmax=True, mixture_of_softmax_k=2)),
    'sigsoftmax': lambda: language(net_of(sigsoftmax_logits=True), label_smoothing=0.1, z_loss_weight=1e-2),
    'own head': lambda: language(net_of(to_logits=own_head())),
    'adapted head': lambda: language(adapted()),
    'looped': lambda: language(net_of(**LOOPED)),
    'looped, heads': lambda: language(net_of(num_output_heads=2, **LOOPED)),
    'next embedding': lambda: language(net_of(add_continuous_pred_head=True)),
    'memory tokens': lambda: language(net_of(num_memory_tokens=2)),
    'attention z-loss': lambda: language(net_of(), add_attn_z_loss=True),
    'early exits': lambda: wrapped(
        EarlyExitWrapper, net_of(stack=dict(depth=2)), exit_classifier='geometric', layer_loss_weights='linear'
    ),
    'early exits, drawn': lambda: wrapped(EarlyExitWrapper, net_of(stack=dict(depth=2)), exit_train='mixed'),
    'segments': lambda: wrapped(XLAutoregressiveWrapper, net_of(max_seq_len=8, max_mem_len=8)),
    'hidden tokens': hidden_tokens,
    'beliefs': beliefs,
    'beliefs, own head': lambda: beliefs(text_head=LowRank(nn.Linear(2 * DIM, 2 * VOCAB))),
    'free': free,
    'latent': latent,
    'preferences': preferences,
    'streams': streams,
    'numbers': numbers,
    'numbers, tied': lambda: numbers(tie_embedding=True),
    'next latent': lambda: wrapped(NextLatentWrapper, dim=DIM, num_rollouts=2),
    'next latent, heads': lambda: wrapped(NextLatentWrapper, net_of(num_output_heads=2), dim=DIM),
    'latents': lambda: wrapped(LatentAutoregressive, dim=DIM, frac_gradient=0.5, sigreg_loss_weight=0.0),
    'passes': passes,
    'candidates': lambda: wrapped(XMLatentDecoder, num_latents=2),
    'encoded': encoded,
    'second readings': lambda: language(Recirculation(net_of(stack=dict(depth=2)), 1, 0)),
}


def everything_at_once(monkeypatch):
    """Take the way of before: all logits, then the plain formula."""
    no = property(lambda self: False)
    for cls in (TransformerWrapper, MultiInputTransformerWrapper, XValTransformerWrapper, Recirculation):
        monkeypatch.setattr(cls, 'can_return_readout', no)
    for module in (token_loss, importlib.import_module('x_transformers.belief_state_wrapper')):
        monkeypatch.setattr(module, 'split_head', lambda head: None)
        monkeypatch.setattr(module, 'reads_whole', lambda head: True)
    monkeypatch.setattr(token_loss, 'fused_losses', None)


def seed(number):
    torch.manual_seed(number)


def trained(model, run):
    seed(3)
    model.zero_grad()
    loss = run(model)
    (0.5 * loss).backward()
    return loss.detach(), {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


@pytest.mark.parametrize('case', CASES)
def test_wrappers_have_the_loss_and_gradients_of_all_logits(case, monkeypatch, few):
    model, run = CASES[case]()
    loss, grads = trained(model, run)
    model.eval()
    with torch.no_grad():
        seed(4)
        evaluated = run(model)
    model.train()
    everything_at_once(monkeypatch)
    expected, goal = trained(model, run)
    torch.testing.assert_close(loss, expected, rtol=1e-5, atol=1e-5)
    assert grads.keys() == goal.keys()
    for name, grad in grads.items():
        torch.testing.assert_close(grad, goal[name], rtol=1e-4, atol=1e-5)
    model.eval()
    with torch.no_grad():
        seed(4)
        torch.testing.assert_close(evaluated, run(model), rtol=1e-5, atol=1e-5)


class Called:
    """A model with other parameters."""

    def __init__(self, model, parameters):
        self.model, self.parameters = model, parameters

    def __call__(self, *args, **kwargs):
        return torch.func.functional_call(self.model, self.parameters, args, kwargs)


def other_parameters(model):
    generator = torch.Generator().manual_seed(5)
    noise = {name: torch.randn(p.shape, generator=generator) for name, p in model.named_parameters()}
    return {name: p.detach() + 0.2 * noise[name] for name, p in model.named_parameters()}


@pytest.mark.parametrize('case', CASES)
def test_parameters_of_a_functional_call(case, few):
    """The backward pass, which runs outside of it, computes with the same ones."""
    model, run = CASES[case]()
    needs = {name: p.requires_grad for name, p in model.named_parameters()}
    parameters = {name: t.requires_grad_(needs[name]) for name, t in other_parameters(model).items()}
    seed(3)
    loss = run(Called(model, parameters))
    learned = {name: t for name, t in parameters.items() if needs[name]}
    grads = dict(zip(learned, torch.autograd.grad(loss, list(learned.values()), allow_unused=True), strict=True))
    with torch.no_grad():
        for name, p in model.named_parameters():
            p.copy_(parameters[name])
    seed(3)
    expected = run(model)
    torch.testing.assert_close(loss, expected)
    own = [p for p in model.parameters() if p.requires_grad]
    for name, goal in zip(learned, torch.autograd.grad(expected, own, allow_unused=True), strict=True):
        assert (goal is None) == (grads[name] is None), name
        if goal is not None:
            torch.testing.assert_close(grads[name], goal, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    'case', ['mixture', 'sigsoftmax', 'own head', 'adapted head', 'beliefs, own head', 'next latent']
)
def test_several_losses_of_a_wrapper_at_once(case, few):
    model, run = CASES[case]()
    learned = [p for p in model.parameters() if p.requires_grad]
    seed(3)
    loss = run(model)
    goal = torch.autograd.grad(loss, learned, retain_graph=True, allow_unused=True)
    found = torch.autograd.grad(loss, learned, torch.tensor([1.0, -2.0]), is_grads_batched=True, allow_unused=True)
    for one, several in zip(goal, found, strict=True):
        assert (one is None) == (several is None)
        if one is not None:
            torch.testing.assert_close(several, torch.stack((one, -2 * one)), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize('case', ['mixture', 'own head', 'adapted head'])
def test_a_head_changed_before_the_backward_pass(case, few):
    model, run = CASES[case]()
    loss = run(model)
    with torch.no_grad():
        next(p for n, p in model.named_parameters() if 'to_logits' in n).mul_(2)
    with pytest.raises(RuntimeError, match=r'changed in place|modified by an inplace'):
        loss.backward()


class Largest(TorchDispatchMode):
    """The most entries of any tensor with the vocabulary as its last axis that an operation gives, by rows of it."""

    rows = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        out = function(*args, **(kwargs or {}))
        for t in tree_leaves(out):
            if torch.is_tensor(t) and t.ndim and t.shape[-1] % VOCAB == 0:
                self.rows = max(self.rows, t.numel() // VOCAB)
        return out


@pytest.mark.parametrize('case', CASES)
def test_no_wrapper_makes_all_logits(case, monkeypatch, few):
    model, run = CASES[case]()
    most = max(10, *(p.numel() // VOCAB for p in model.parameters()))  # the weights of the head, and their gradient
    with Largest() as largest:
        trained(model, run)
        model.eval()
        with torch.no_grad():
            run(model)
    assert 0 < largest.rows <= most
    model.train()
    everything_at_once(monkeypatch)
    with Largest() as largest:
        trained(model, run)
    assert largest.rows > most


# who has a say in the logits


def test_an_adapted_head_is_called_with_few_tokens(few):
    net = adapted()
    AutoregressiveWrapper(net)(ids_of(2, LENGTH)).backward()
    head = net.to_logits
    assert max(head.calls) == 5 and sum(head.calls) == 2 * 2 * LENGTH  # each token twice: forward, backward
    assert head.base.weight.grad is None and head.up.weight.grad.abs().sum() > 0


class Blurred(nn.Module):
    """A head that reads neighbours too."""

    def __init__(self):
        super().__init__()
        self.mix, self.out = nn.Conv1d(DIM, DIM, 3, padding=1), nn.Linear(DIM, VOCAB)

    def forward(self, x):
        return self.out(self.mix(x.transpose(1, 2)).transpose(1, 2))


HEADS = {'mixes tokens': Blurred, 'of all tokens': lambda: nn.Sequential(nn.Linear(DIM, VOCAB), nn.Softmax(dim=1))}


@pytest.mark.parametrize('head', HEADS)
def test_a_head_that_is_not_known_reads_all_tokens(few, head):
    net = net_of(to_logits=HEADS[head]())
    model, ids = AutoregressiveWrapper(net), ids_of(2, LENGTH)
    goal = F.cross_entropy(net(ids.clamp(min=0))[:, :-1].flatten(0, 1), ids[:, 1:].flatten())
    torch.testing.assert_close(model(ids), goal)


@pytest.mark.parametrize('where', ['net', 'head', 'inside'])
def test_hooks_see_all_logits(few, where):
    net = net_of(to_logits=own_head()) if where == 'inside' else net_of()
    model, ids, seen = AutoregressiveWrapper(net), ids_of(2, LENGTH), []
    before = model(ids)
    module = {'net': net, 'head': net.to_logits}.get(where) or net.to_logits[-1]
    handle = module.register_forward_hook(lambda module, args, out: seen.append(out.shape))
    torch.testing.assert_close(model(ids), before)
    assert seen == [(2, LENGTH, VOCAB)]
    handle.remove()
    module.register_forward_hook(lambda module, args, out: out * 2)
    assert not torch.allclose(model(ids), before)


def test_a_patched_forward_is_called(few):
    net = net_of()
    model, ids = AutoregressiveWrapper(net), ids_of(2, LENGTH)
    own = net.to_logits.forward
    net.to_logits.forward = lambda x: own(x) * 0
    torch.testing.assert_close(model(ids), torch.tensor(VOCAB).log(), rtol=1e-5, atol=1e-5)


def test_subclasses_have_their_own_logits(few):
    class Sharper(TransformerWrapper):
        def forward(self, *args, **kwargs):
            return super().forward(*args, **kwargs) * 3

    class Read(TransformerWrapper):
        def read_out(self, x, call, to_logits_kwargs):
            return super().read_out(x, call, to_logits_kwargs) * 3

    class Head(nn.Linear):
        def forward(self, x):
            return super().forward(x) * 3

    plain, ids = net_of(), ids_of(2, LENGTH)
    goal = F.cross_entropy(3 * plain(ids.clamp(min=0))[:, :-1].flatten(0, 1), ids[:, 1:].flatten())
    for cls in (Sharper, Read):
        net = cls(num_tokens=VOCAB, max_seq_len=LENGTH, attn_layers=stack_of())
        net.load_state_dict(plain.state_dict())
        torch.testing.assert_close(AutoregressiveWrapper(net)(ids), goal)
    net = net_of(to_logits=Head(DIM, VOCAB, bias=False))
    net.load_state_dict(plain.state_dict())
    torch.testing.assert_close(AutoregressiveWrapper(net)(ids), goal)


class Smeared(ModelFeature):
    """Each token's logits have those of the token before."""

    smeared = flag(False, 'mix the logits of tokens')

    def logits(self, logits, call):
        return logits + logits.roll(1, dims=1)


class Doubled(ModelFeature):
    """Logits twice as large, each token alone."""

    doubled = flag(False, 'double the logits')
    by_token = True

    def logits(self, logits, call):
        return logits * 2


def test_features_of_logits(few):
    for feature, name, rows in ((Smeared, 'smeared', 2 * LENGTH), (Doubled, 'doubled', 5)):
        net = net_of(features=(*MODEL, feature), **{name: True})
        ids = ids_of(2, LENGTH)
        goal = F.cross_entropy(net(ids.clamp(min=0))[:, :-1].flatten(0, 1), ids[:, 1:].flatten())
        with Largest() as largest:
            loss = AutoregressiveWrapper(net)(ids)
        torch.testing.assert_close(loss, goal)
        assert largest.rows == max(rows, DIM)


class Foreign(nn.Module):
    """A net that is none of ours."""

    max_seq_len = LENGTH

    def __init__(self):
        super().__init__()
        self.emb = nn.Embedding(VOCAB, DIM)

    def forward(self, x, return_intermediates=False):
        assert not return_intermediates
        return self.emb(x) @ self.emb.weight.t()


def test_other_nets_give_logits():
    net, ids = Foreign(), ids_of(2, LENGTH)
    goal = F.cross_entropy(net(ids.clamp(min=0))[:, :-1].flatten(0, 1), ids[:, 1:].flatten())
    torch.testing.assert_close(AutoregressiveWrapper(net)(ids), goal)


@pytest.mark.parametrize(
    'options', [{}, dict(num_output_heads=2), dict(mixture_of_softmax=True), dict(to_logits=own_head())]
)
def test_outputs_are_all_logits(few, options):
    net, ids = net_of(**options), ids_of(2, LENGTH)
    model = AutoregressiveWrapper(net)
    loss, (logits, trace) = model(ids, return_outputs=True)
    torch.testing.assert_close(loss, model(ids))
    expected = net(ids.clamp(min=0))
    expected = tuple(t[:, :-1] for t in expected) if isinstance(expected, tuple) else expected[:, :-1]
    torch.testing.assert_close(logits, expected)
    assert trace.logits is not None
    readout = net(ids.clamp(min=0), return_readout=True)
    assert readout.shape == (2, LENGTH)
    torch.testing.assert_close(readout[:, :-1].logits, expected)


def test_a_readout_has_no_entropies():
    with pytest.raises(ValueError, match='`return_readout` cannot be combined with `return_logit_entropies`'):
        net_of()(ids_of(1, 4, ignored=False), return_readout=True, return_logit_entropies=True)
    with pytest.raises(ValueError, match='`return_readout` cannot be given to the loss'):
        AutoregressiveWrapper(net_of())(ids_of(1, 4), return_readout=True)


def test_learning_twice_from_a_loss(few):
    """A penalty on the gradient of the loss, through the head and the stack."""
    found = []
    for fused in (True, False):
        net = net_of(stack=dict(attn_flash=False))
        net.to_logits = net.to_logits if fused else LowRank(net.to_logits)
        head = net.to_logits if fused else net.to_logits.base
        head.weight.requires_grad_()
        if not fused:
            nn.init.zeros_(net.to_logits.up.weight)
        loss = AutoregressiveWrapper(net)(ids_of(2, LENGTH))
        (grad,) = torch.autograd.grad(loss, head.weight, create_graph=True)
        grad.square().sum().backward()
        found.append([head.weight.grad, net.token_emb.emb.weight.grad])
    torch.testing.assert_close(*found, rtol=1e-4, atol=1e-7)


# the keywords


def test_label_smoothing_and_z_loss_of_the_wrapper(few):
    ids = ids_of(2, LENGTH)
    for options in (dict(), dict(num_output_heads=2)):
        net = net_of(**options)
        logits = net(ids.clamp(min=0))
        goals = []
        for z in logits if isinstance(logits, tuple) else (logits,):
            log_probs = z[:, :-1].double().log_softmax(dim=-1)
            spread = torch.full_like(log_probs, 0.2 / VOCAB)
            spread.scatter_add_(2, ids[:, 1:, None].clamp(min=0), torch.full_like(spread[..., :1], 0.8))
            each = -(spread * log_probs).sum(dim=-1) + 0.01 * z[:, :-1].double().exp().sum(dim=-1).log() ** 2
            goals.append(each[ids[:, 1:] != -100].mean())
        model = AutoregressiveWrapper(net, label_smoothing=0.2, z_loss_weight=0.01)
        for loss in (model(ids), model(ids, return_outputs=True)[0]):
            torch.testing.assert_close(loss.double(), sum(goals) / len(goals), rtol=1e-5, atol=1e-5)


def test_keywords_out_of_range():
    for name, value in (
        ('label_smoothing', 1.0),
        ('label_smoothing', -0.1),
        ('z_loss_weight', -1.0),
        ('z_loss_weight', 'a'),
    ):
        with pytest.raises(ConfigError, match=f'`{name}` must be .*, got {value!r}'):
            AutoregressiveWrapper(net_of(), **{name: value})
    with pytest.raises(ConfigError, match='`z_loss_weight` must be 0 with `mixture_of_softmax`'):
        AutoregressiveWrapper(net_of(mixture_of_softmax=True), z_loss_weight=0.1)


# compiled, and in half precision


COMPILED = ('language', 'language, smoothed', 'mixture', 'tied', 'heads', 'sigsoftmax', 'looped', 'free')


@pytest.mark.costly
@pytest.mark.parametrize('case', ['language', *(pytest.param(case, marks=pytest.mark.slow) for case in COMPILED[1:])])
def test_one_compiled_graph(few, case):
    """It makes no logits either, in neither pass: the loss is one node, which takes a few tokens at a time."""
    torch._dynamo.reset()
    rows = []

    def seen(graph, inputs):
        values = [t for node in graph.graph.nodes for t in tree_leaves(node.meta.get('val'))]
        rows.extend(t.numel() // VOCAB for t in values if torch.is_tensor(t) and t.ndim and t.shape[-1] == VOCAB)
        return make_boxed_func(graph.forward)

    model, run = CASES[case]()
    expected, goal = trained(model, run)
    backend = aot_autograd(fw_compiler=seen, bw_compiler=seen)
    found, grads = trained(torch.compile(model, fullgraph=True, backend=backend), run)
    torch.testing.assert_close(found, expected)
    grads = {name.removeprefix('_orig_mod.'): grad for name, grad in grads.items()}
    torch.testing.assert_close(grads, goal, rtol=1e-4, atol=1e-6)
    if case in ('mixture', 'sigsoftmax', 'looped'):  # which are read at once
        assert 2 * LENGTH in rows
    else:
        assert all(count <= DIM for count in rows)


@pytest.mark.slow
@pytest.mark.parametrize('dynamic', [None, True])
def test_one_compiled_graph_of_the_function(few, dynamic):
    torch._dynamo.reset()
    inputs, targets = operands(8, ignored=(2,))

    def loss(hidden, weight, bias, targets):
        options = dict(ignore_index=-1, label_smoothing=0.1, z_loss_weight=0.1)
        return linear_cross_entropy(hidden * 2, weight, targets, bias, **options)

    expected = loss(*inputs, targets)
    found = torch.compile(loss, fullgraph=True, backend='aot_eager', dynamic=dynamic)(*inputs, targets)
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(torch.autograd.grad(found * 3, inputs), torch.autograd.grad(expected * 3, inputs))


@pytest.mark.slow
def test_one_graph_for_all_lengths(few):
    torch._dynamo.reset()
    graphs = []

    def counted(graph, inputs):
        graphs.append(graph)
        return graph

    model = torch.compile(AutoregressiveWrapper(net_of()), fullgraph=True, backend=counted, dynamic=True)
    for length in (5, 8, 12):
        model(ids_of(2, length)).backward()
    assert len(graphs) == 1


@pytest.mark.parametrize('case', ['language', 'tied', 'own head', 'mixture', 'preferences', 'beliefs'])
def test_wrappers_under_autocast(few, case):
    model, run = CASES[case]()
    exact, goal = trained(model, run)
    with torch.autocast('cpu', torch.bfloat16):
        seed(3)
        model.zero_grad()
        loss = run(model)
    loss.backward()
    assert loss.dtype == torch.float32
    torch.testing.assert_close(loss.detach(), exact, rtol=2e-2, atol=2e-2)
    grads = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    assert grads.keys() == goal.keys() and all(g.isfinite().all() for g in grads.values())


@pytest.mark.parametrize('reduction', ['mean', 'none'])
def test_a_graph_of_gradients_counts_every_path_once(few, reduction):
    """Where one input is made from another, as with tied embeddings, that path is not the loss's own."""
    table = torch.randn(7, 3, dtype=torch.float64, requires_grad=True)
    ids, targets = torch.randint(0, 7, (2, 8), generator=torch.Generator().manual_seed(0))

    def loss(table):
        hidden = table[ids].sin()
        return linear_cross_entropy(hidden, table, targets, hidden[0, :1].expand(7), reduction=reduction).square().sum()

    (wanted,) = torch.autograd.grad(loss(table), table)
    (found,) = torch.autograd.grad(loss(table), table, create_graph=True)
    torch.testing.assert_close(found, wanted)
    assert torch.autograd.gradcheck(loss, table) and torch.autograd.gradgradcheck(loss, table)
    upstream = torch.randn(3, dtype=torch.float64)
    (several,) = torch.autograd.grad(loss(table), table, upstream, is_grads_batched=True)
    torch.testing.assert_close(several, upstream[:, None, None] * wanted)
    exact = torch.autograd.functional.hessian(lambda t: plain_of(t, ids, targets, reduction), table)
    torch.testing.assert_close(torch.autograd.functional.hessian(loss, table), exact)


def plain_of(table, ids, targets, reduction):
    hidden = table[ids].sin()
    logits = hidden @ table.t() + hidden[0, 0]
    return F.cross_entropy(logits, targets, reduction=reduction).square().sum()


@pytest.mark.parametrize('reduction', ['mean', 'none'])
def test_gradients_of_several_losses_at_once(few, reduction):
    inputs, targets = operands(4)
    loss = linear_cross_entropy(*inputs[:2], targets, inputs[2], reduction=reduction)
    upstream = torch.randn(3, *loss.shape, dtype=torch.float64)
    found = torch.autograd.grad(loss, inputs, upstream, is_grads_batched=True, retain_graph=True)
    each = [torch.autograd.grad(loss, inputs, one, retain_graph=True) for one in upstream]
    torch.testing.assert_close(found, tuple(map(torch.stack, zip(*each, strict=True))))
