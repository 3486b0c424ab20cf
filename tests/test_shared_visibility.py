"""What a stack settles once for its layers is what each of them would settle for itself."""

import copy

import pytest
import torch
from oracles import assert_close, randomised
from torch import nn

from x_transformers import Attention, Decoder, Encoder, TransformerWrapper, x_transformers as core
from x_transformers.features import ATTENTION, AttentionFeature
from x_transformers.flags import flag
from x_transformers.kernels import visibility

N = 7
PADDED = torch.arange(N) < torch.tensor([[N], [4]])
HOLES = torch.arange(N) % 2 == torch.tensor([[0], [1]])


def stack(kind=Decoder, **flags):
    torch.manual_seed(0)
    sizes = {'dim': 16, 'depth': 3, 'heads': 4, 'attn_dim_head': 8, 'verbose': False, 'alibi_num_heads': None}
    if 'alibi_pos_bias' not in flags:
        del sizes['alibi_num_heads']
    return randomised(kind(**{**sizes, **flags})).double()


def tokens():
    generator = torch.Generator().manual_seed(1)
    return torch.randn(2, N, 16, generator=generator, dtype=torch.double, requires_grad=True)


@pytest.fixture
def told(monkeypatch):
    """Counts the layers that take over what the stack has settled."""
    seen, own = [], visibility.Visibility.apply_to
    monkeypatch.setattr(visibility.Visibility, 'apply_to', lambda self, call: seen.append(1) or own(self, call))
    return seen


def passed(net, **inputs):
    x = tokens()
    out = net(x, **inputs)
    return [out, *torch.autograd.grad(out.square().sum(), (x, *net.parameters()), allow_unused=True)]


def alone(net, **inputs):
    """The same where each layer settles what it sees."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(core, 'shared_visibility', lambda *_: None)
        return passed(net, **inputs)


def check(net, **inputs):
    for own, wanted in zip(passed(net, **inputs), alone(net, **inputs), strict=True):
        assert (own is None) == (wanted is None)
        assert own is None or torch.allclose(own, wanted, rtol=1e-12, atol=1e-12)  # gradients may be summed otherwise


class HalfBlind(AttentionFeature):
    half_blind = flag(False, 'hide the first key from later ones, in one layer')

    def mask(self, call):
        return torch.arange(call.keys) != 0


FLAGS = {
    'plain': {},
    'encoder': dict(kind=Encoder),
    'alibi': dict(alibi_pos_bias=True),
    't5': dict(rel_pos_bias=True, attn_kv_heads=2),
    'dynamic': dict(dynamic_pos_bias=True, kind=Encoder),
    'formula': dict(alibi_pos_bias=True, attn_flash=False),
    'top-k': dict(attn_sparse_topk=2, alibi_pos_bias=True),
    'checkpoints': dict(alibi_pos_bias=True, checkpoint_layers=2),
    'reversible': dict(reversible=True),
}
INPUTS = {
    'nothing': {},
    'mask': dict(mask=PADDED),
    'holes': dict(mask=HOLES),
    'nothing is real': dict(mask=torch.zeros(2, N) > 0),
    'start': dict(seq_start_pos=torch.tensor([0, 3])),
    'pairs': dict(attn_mask=torch.ones(N, N).tril(1) > 0),
    'keys': dict(self_attn_kv_mask=HOLES),
    'bias': dict(attn_bias=torch.linspace(-1, 1, N, dtype=torch.double)),
    'positions': dict(pos=torch.arange(N) * 2),
}


@pytest.mark.parametrize('inputs', INPUTS.values(), ids=INPUTS)
@pytest.mark.parametrize('flags', FLAGS.values(), ids=FLAGS)
def test_layers_see_what_each_would_settle(flags, inputs):
    if 'pos' in inputs and flags.get('dynamic_pos_bias') is None and not flags.get('alibi_pos_bias'):
        pytest.skip('no positions that a caller may give')
    check(stack(**flags), **inputs)


@pytest.mark.parametrize('flags, inputs', [(FLAGS['plain'], INPUTS['mask']), (FLAGS['t5'], {})], ids=['mask', 't5'])
def test_all_layers_share_it(flags, inputs, told):
    passed(stack(**flags), **inputs)
    assert len(told) == 3


@pytest.mark.parametrize('name', ['mask', 'attn_mask', 'rel_pos', 'attn_bias', 'causal'])
def test_a_layer_that_is_given_something_else_settles_it_itself(name, told):
    """By a hook that changes what the second attention is called with; a twin calls that layer by hand."""
    net = stack(alibi_pos_bias=True)
    others = dict(
        mask=HOLES, attn_mask=torch.eye(N) > 0, rel_pos=lambda i, j: torch.ones(4, i, j).double().cumsum(-1),
        causal=False,
        attn_bias=torch.linspace(-1, 1, N, dtype=torch.double),
    )  # fmt: skip
    attn = net.layers[2][1]

    def change(module, args, kwargs):
        return args, {**kwargs, name: others[name], **({'context_mask': HOLES} if name == 'mask' else {})}

    attn.register_forward_pre_hook(change, with_kwargs=True)
    check(net, mask=PADDED)
    assert len(told) == 2


ALONE = {
    'rel_pos': lambda i, j: torch.arange(float(j)).double().expand(4, i, j),
    'attn_bias': torch.linspace(-1, 1, N, dtype=torch.double),
}


@pytest.mark.whole
@pytest.mark.parametrize('name', ALONE)
def test_a_bias_of_one_layer_alone(name, told):
    """The others are given none."""
    net = stack()
    before = net(tokens(), mask=PADDED)

    def add(module, args, kwargs):
        return args, {**kwargs, name: ALONE[name]}

    net.layers[2][1].register_forward_pre_hook(add, with_kwargs=True)
    told.clear()
    check(net, mask=PADDED)
    assert len(told) == 2 and not torch.allclose(net(tokens(), mask=PADDED), before)


def test_features_that_hide_in_one_layer(told):
    """Each of three layers hides what it is built to."""
    features = (*ATTENTION, HalfBlind)
    net = stack(features=features, attn_half_blind=(False, True, False))
    check(net, mask=PADDED)
    assert len(told) == 2


def test_streams_are_no_rows_of_the_batch():
    check(stack(num_residual_streams=2), mask=PADDED)
    check(stack(num_residual_streams=2, alibi_pos_bias=True))


def test_a_bias_in_half_precision_learns_in_full():
    """What layers add to its gradient is summed as if each had its own, to the bit."""
    net, x = stack(rel_pos_bias=True).float(), tokens().float().detach()
    weight = net.rel_pos.relative_attention_bias.weight

    def gradient():
        with torch.autocast('cpu', torch.bfloat16):
            return torch.autograd.grad(net(x).float().square().sum(), weight)[0]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(core, 'shared_visibility', lambda *_: None)
        wanted = gradient()
    assert torch.equal(gradient(), wanted)


def test_a_layer_of_a_model_is_the_layer_alone():
    """The first attention, called by hand with the same mask."""
    net, x = stack(depth=1), tokens()
    (norms, attn, _), (ff_norms, ff, _) = net.layers
    y = x + attn(norms[0](x), mask=PADDED)
    wanted = net.final_norm(y + ff(ff_norms[0](y)))
    assert_close(net(x, mask=PADDED)[PADDED], wanted[PADDED], tolerance=1e-12)


def test_a_stack_whose_first_layer_is_another_kind_of_attention(told):
    class Own(nn.Module):
        def __init__(self, inner):
            super().__init__()
            self.inner = inner

        def forward(self, x, **kwargs):
            return self.inner(x, **kwargs)

    net = stack(alibi_pos_bias=True)
    wanted = net(tokens(), mask=PADDED)
    net.layers[0][1] = Own(net.layers[0][1])
    assert isinstance(net.layers[2][1], Attention)
    assert_close(net(tokens(), mask=PADDED), wanted, tolerance=1e-12)


def test_wrappers_share_too(told):
    net = TransformerWrapper(num_tokens=9, max_seq_len=N, attn_layers=stack()).double()
    twin, ids = copy.deepcopy(net), torch.arange(2 * N).view(2, N) % 9
    shared = net(ids, mask=PADDED)
    assert len(told) == 3
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(core, 'shared_visibility', lambda *_: None)
        assert torch.equal(shared, twin(ids, mask=PADDED))
