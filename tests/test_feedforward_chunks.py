"""Feedforwards in slices of the tokens: the same numbers and gradients, in less memory."""

from typing import ClassVar

import pytest
import torch
from law_cases import randomise
from oracles import assert_close, randn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from x_transformers import Decoder, FeedForward
from x_transformers.features import FEEDFORWARD, FeedForwardFeature, flag
from x_transformers.flags import ConfigError

SHAPES = {
    'plain': {},
    'gated, normed': dict(glu=True, swish=True, post_act_ln=True, dim_out=3),
    'experts': dict(moe_experts=4, moe_balance_loss=0.5, moe_shared=1, sublayer_dropout=0.1),
}


def pair(chunks, **flags):
    """The same feedforward whole and in slices."""
    whole = randomise(FeedForward(5, **{n: v for n, v in flags.items() if n != 'chunk_checkpoint'}).double())
    sliced = FeedForward(5, chunks=chunks, **flags).double()
    sliced.load_state_dict(whole.state_dict())
    return whole, sliced


def slicewise(module, x, sizes):
    """One slice after the other, by hand."""
    return torch.cat([module(part) for part in x.split(sizes, dim=-2)], dim=-2)


@pytest.mark.parametrize('flags', SHAPES.values(), ids=SHAPES.keys())
def test_the_same_for_any_number_of_slices(flags):
    """Also one that does not divide the tokens, and more than there are; with the loss of experts, over all tokens."""
    for chunks, sizes in ((3, (3, 3, 1)), (2, (4, 3)), (9, (1,) * 7)):
        whole, sliced = pair(chunks, **flags)
        x = randn(2, 7, 5).requires_grad_()
        seen = []
        hook = sliced.ff.register_forward_pre_hook(lambda module, args, seen=seen: seen.append(args[0].shape[-2]))
        wanted = torch.autograd.grad(whole(x).sin().sum(), [x, *whole.parameters()], allow_unused=True)
        found = torch.autograd.grad(sliced.eval()(x).sin().sum(), [x, *sliced.parameters()], allow_unused=True)
        hook.remove()
        assert 'moe_experts' in flags or tuple(seen) == sizes
        for one, other in zip(found, wanted, strict=True):
            assert (one is None) == (other is None)
            if one is not None:
                assert_close(one, other)
        assert_close(sliced(x[0]), whole(x[0]))
        assert_close(sliced(x[0, 0]), whole(x[0, 0]))  # a token alone
    assert sliced(x[:, :0]).shape == whole(x[:, :0]).shape


def test_computing_again_draws_the_same():
    """Masks of dropout differ from those of all tokens at once, but not between the two passes."""
    for flags in (dict(dropout=0.5), dict(moe_experts=4, moe_balance_loss=0.5, dropout=0.5)):
        whole, kept = pair(3, **flags)
        again = pair(3, chunk_checkpoint=True, **flags)[1]
        x, found = randn(2, 7, 5).requires_grad_(), []
        for module in (kept, again):
            torch.manual_seed(3)
            grads = torch.autograd.grad(module.train()(x).sin().sum(), [x, *module.parameters()])
            found.append(grads)
        for one, other in zip(*found, strict=True):
            assert_close(one, other)
        if 'moe_experts' not in flags:
            torch.manual_seed(3)
            out = again(x)
            torch.manual_seed(3)
            assert_close(out, slicewise(whole.train(), x, (3, 3, 1)))


def test_nothing_is_computed_again_in_evaluation():
    module, seen = pair(3, chunk_checkpoint=True)[1], []
    module.ff.register_forward_pre_hook(lambda *_: seen.append(1))
    x = randn(2, 7, 5).requires_grad_()
    for train, runs in ((False, 3), (True, 6)):
        seen.clear()
        module.train(train)(x).sum().backward()
        assert len(seen) == runs


def test_parameters_that_change_after_the_call():
    """The backward pass computes with those of the call."""
    whole, module = pair(2, chunk_checkpoint=True)
    x = randn(2, 7, 5)
    given = {n: (p * 1.5).detach().requires_grad_() for n, p in module.named_parameters()}
    found = [
        torch.autograd.grad(torch.func.functional_call(m.train(), given, (x,)).sin().sum(), [*given.values()])
        for m in (whole, module)
    ]
    for one, other in zip(*found, strict=True):
        assert_close(one, other)


class Living(TorchDispatchMode):
    """The most bytes of results that are alive at once, and the largest of them."""

    def __init__(self):
        super().__init__()
        self.sizes, self.peak, self.largest = {}, 0, 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        out = function(*args, **(kwargs or {}))
        for t in tree_leaves(out):
            if isinstance(t, torch.Tensor) and t.untyped_storage().nbytes():
                storage = t.untyped_storage()
                self.sizes[storage.data_ptr()] = (torch.multiprocessing.reductions.StorageWeakRef(storage), t.nbytes)
                self.largest = max(self.largest, storage.nbytes())
        self.sizes = {at: (ref, size) for at, (ref, size) in self.sizes.items() if not ref.expired()}
        self.peak = max(self.peak, sum(size for _, size in self.sizes.values()))
        return out


def step(n, training, **flags):
    torch.manual_seed(0)
    module = FeedForward(64, mult=4, **flags).train(training)
    x = torch.randn(1, n, 64, requires_grad=training)
    with Living() as living, torch.set_grad_enabled(training):
        out = module(x)
        if training:
            out.backward(torch.ones_like(out))
    return living.peak / x.nbytes, living.largest / x.nbytes


def test_memory():
    """In units of the stream: the widest tensors shrink by the number of slices, and so does all that is held."""
    whole, widest = step(1024, False)
    sliced, narrow = step(1024, False, chunks=16)
    assert widest == 4 and narrow == 1 and whole - 1 > 8 * (sliced - 2)  # the output, and its slices
    kept, again = (step(1024, True, chunks=16, chunk_checkpoint=on)[0] for on in (False, True))
    assert again < kept / 2, 'all slices keep their inner features'
    whole, again = step(4096, True)[0], step(4096, True, chunks=16, chunk_checkpoint=True)[0]
    assert whole - 2 > 8 * (again - 2)  # the output, and the gradient of the input


class Mixing(FeedForwardFeature):
    """A convolution over tokens."""

    mixing = flag(False, 'mix neighbours')
    refuses: ClassVar = {'documents': 'it reads the neighbours of a token'}

    def layers(self, modules):
        return modules


class RecurrentState(FeedForwardFeature):
    """Runs in its own way."""

    running = flag(False, 'run twice')

    def run(self, x, call):
        return self.owner.ff(x) + self.owner.ff(x)


@pytest.mark.parametrize(
    ('flags', 'message'),
    [
        (dict(chunks=0), '`chunks` must be an integer of at least 1, got 0'),
        (dict(chunks=2, mixing=True), '`chunks` cannot be combined with `mixing`: it reads the neighbours of a token'),
        (dict(chunks=2, running=True), '`chunks` cannot be combined with `running`: it does not say `in_slices`'),
    ],
    ids=str,
)
def test_refusals(flags, message):
    with pytest.raises(ConfigError, match=message):
        FeedForward(8, features=(*FEEDFORWARD, Mixing, RecurrentState), **flags)


def test_layers_of_their_own():
    net = Decoder(dim=16, depth=2, heads=2, attn_dim_head=8, ff_chunks=(1, 3))
    assert ['ff_input' in layer[1].features.by_stage for layer in net.layers] == [False, False, False, True]
