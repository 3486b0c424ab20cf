"""The gradient of every wrapper's loss, and what a second backward pass gives, against finite differences.

Some wrappers hold a part of what they compute constant, by the paper. The table says which part, and in which method:
there, what is cut off keeps the values that it had while parameters move, and the gradient is the slope of that.
"""

import sys

import pytest
import torch
from test_aux_losses import WRAPPERS, seeded

from x_transformers.nonautoregressive_wrapper import NonAutoregressiveWrapper

# name -> (what is held constant, the functions that cut it off)
CUT = {
    'looped': ('the weights of the passes, and what the gate should say, arXiv:2510.25741', {'looped_loss'}),
    'segments': ('memories of earlier segments, arXiv:1901.02860', {'new_mems'}),
    'segments that learn': (
        'memories and learned parameters, after every second segment, arXiv:1901.02860', {'new_mems', 'detach'}),
    'hidden tokens, guessed before': ('the first guess, arXiv:2208.04202', {'first_guess'}),
    'next latent': (
        'targets, tokens, the head and the fading of weights, arXiv:2511.05963',
        {'latent_losses', 'weights', 'ModuleState'}),
    'latents': ('what is foretold, and most of the probe, by default', {'forward', 'scale_grad'}),
    'free': ('the difference between the hard choice and the soft one, arXiv:2510.17558', {'forward'}),
}  # fmt: skip
STEP = 1e-6
# the inner step takes a derivative of its own, and torch's layer norm is wrong from the third on
THIRD = {'segments that learn'}
QUICK = {*CUT, 'language', 'encoded'}


@pytest.fixture(autouse=True)
def _in_doubles():
    torch.set_default_dtype(torch.float64)


class Frozen:
    """What some functions cut off from the graph, as it was in the first run."""

    def __init__(self, names, monkeypatch):
        self.names, self.kept, self.at = names, [], 0
        detach, guess = torch.Tensor.detach, NonAutoregressiveWrapper.first_guess
        monkeypatch.setattr(torch.Tensor, 'detach', lambda t: self.passed(caller(), detach(t)))
        guessed = lambda *args: self.passed('first_guess', guess(*args))  # noqa: E731
        monkeypatch.setattr(NonAutoregressiveWrapper, 'first_guess', guessed)

    def passed(self, name, t):
        if name not in self.names:
            return t
        self.at += 1
        if self.at > len(self.kept):
            self.kept.append(t.clone())
        return self.kept[self.at - 1].clone()


def caller():
    """The function of the package that detaches, or the class that is built."""
    frame = sys._getframe(2)
    while frame.f_code.co_name.startswith('<') or frame.f_globals['__name__'] == 'torch.utils._pytree':
        frame = frame.f_back
    if not frame.f_globals['__name__'].startswith('x_transformers'):
        return ''
    name = frame.f_code.co_name
    return name if name != '__init__' else type(frame.f_locals['self']).__name__


class Moving:
    """A model whose loss, and its gradients, are asked for at other parameters."""

    def __init__(self, case):
        self.model, self.of = seeded(WRAPPERS[case][0])
        self.parameters = [p for p in self.model.parameters() if p.requires_grad]
        generator = torch.Generator().manual_seed(1)
        self.way = [torch.randn(p.shape, generator=generator) for p in self.parameters]

    def slopes(self, **options):
        torch.manual_seed(2)
        loss = self.of(self.model).sum()
        grads = torch.autograd.grad(loss, self.parameters, materialize_grads=True, **options)
        return loss.detach(), *grads

    def differences(self, start):
        """Of the loss and of each gradient, along the way, by central differences."""
        places, kept = [], [p.detach().clone() for p in self.parameters]
        for step in (STEP, -STEP):
            start()
            with torch.no_grad():
                for p, old, change in zip(self.parameters, kept, self.way, strict=True):
                    p.copy_(old + step * change)
            places.append(self.slopes())
        with torch.no_grad():
            for p, old in zip(self.parameters, kept, strict=True):
                p.copy_(old)
        return [(ahead - behind) / (2 * STEP) for ahead, behind in zip(*places, strict=True)]


def layer_norm(x, shape, weight, bias=None, eps=1e-5):
    assert bias is None
    x = x - x.mean(dim=-1, keepdim=True)
    return x * (x.square().mean(dim=-1, keepdim=True) + eps).rsqrt() * weight


def cases():
    return [pytest.param(case, marks=() if case in QUICK else pytest.mark.slow) for case in WRAPPERS]


@pytest.mark.parametrize('case', cases())
def test_gradients_are_slopes(case, monkeypatch):
    moving, (_, names) = Moving(case), CUT.get(case, ('', ()))
    with monkeypatch.context() as patched:
        frozen = Frozen(names, patched)
        if case in THIRD:
            patched.setattr(torch, 'layer_norm', layer_norm)
        _, *grads = moving.slopes(create_graph=True)
        along = sum((grad * change).sum() for grad, change in zip(grads, moving.way, strict=True))
        bent = torch.autograd.grad(along, moving.parameters, materialize_grads=True)
        slope, *curves = moving.differences(lambda: setattr(frozen, 'at', 0))
    torch.testing.assert_close(along.detach(), slope, rtol=1e-7, atol=1e-7)
    torch.testing.assert_close([*bent], curves, rtol=1e-6, atol=1e-6)
    assert bool(frozen.kept) == bool(names)
    if names:  # and without that it is another function
        moved = moving.differences(lambda: None)[0]
        assert not torch.isclose(along.detach(), moved, rtol=1e-5, atol=0)
