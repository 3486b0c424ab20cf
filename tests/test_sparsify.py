"""A dense model that becomes a sparse one: what stays, what is copied, and what is refused."""

import copy

import pytest
import torch
from building import models
from law_cases import randomise
from oracles import assert_close

from x_transformers import AutoregressiveWrapper, Decoder, Encoder, XTransformer, sparsify_
from x_transformers.patterns import BigBird, Global, Sliding

STACK = dict(dim=16, depth=2, heads=2, attn_dim_head=8, ff_mult=1)
IDS = torch.randint(0, 20, (2, 8), generator=torch.Generator().manual_seed(0))


model = models(20, 8, finish=lambda net: randomise(net.double()), **STACK)


@pytest.mark.parametrize('kind', [Decoder, Encoder])
def test_wide_windows_change_nothing(kind):
    net = model(kind, dict(alibi_pos_bias=True))
    expected, held = net(IDS), dict(net.named_parameters())
    calls = []
    net.attn_layers.layers[0][1].to_q.register_forward_hook(lambda *args: calls.append(1))
    state = torch.get_rng_state()
    assert sparsify_(net, Sliding(16)) is net and torch.equal(torch.get_rng_state(), state)
    assert_close(net(IDS), expected, tolerance=1e-12)
    assert calls == [1] and all(p is held[name] for name, p in net.named_parameters())
    (feature,) = net.attn_layers.layers[0][1].features.by_stage['attend']
    assert feature.pattern == Sliding(16)
    for other in (type(net).from_config(net.config).double(), copy.deepcopy(net)):
        other.load_state_dict(net.state_dict())
        assert other.config == net.config and 'sliding' in str(net.config)
        assert_close(other.eval()(IDS), expected, tolerance=1e-12)
    sparsify_(net, Sliding(1))
    assert not torch.allclose(net(IDS), expected)
    assert_close(sparsify_(net, None)(IDS), expected, tolerance=1e-12)


def test_positions_are_repeated():
    net = model()
    expected, table = net(IDS), net.pos_emb.emb.weight.detach().clone()
    sparsify_(net, Sliding(7), max_seq_len=20)
    longer = net.pos_emb.emb.weight
    assert longer.shape == (20, 16) and all(torch.equal(longer[p], table[p % 8]) for p in range(20))
    assert_close(net(IDS), expected, tolerance=1e-12)
    again = type(net).from_config(net.config).double()
    again.load_state_dict(net.state_dict())
    far = IDS.repeat(1, 2)
    assert_close(again.eval()(far), net(far), tolerance=1e-12)
    found = AutoregressiveWrapper(net).generate(IDS, 12, temperature=0.0)
    assert found.shape == (2, 12)


def test_what_a_pattern_brings():
    net = model(Encoder)
    dense = net.state_dict()
    sparsify_(net.bfloat16(), BigBird(1, 3, 2, 2, max_len=8))
    missing, unexpected = net.load_state_dict(dense, strict=False)
    assert unexpected == [] and missing == [f'attn_layers.layers.{at}.1.random_blocks' for at in (0, 2)]
    net.load_state_dict({**dense, **{name: net.state_dict()[name] for name in missing}})
    assert net(IDS).dtype == torch.bfloat16 and net.attn_layers.layers[0][1].random_blocks.dtype == torch.long


def test_another_pattern_and_back():
    """What an earlier pattern had is gone, what was drawn is drawn anew; the same pattern keeps what it has."""
    for first in (Sliding(2) | Global('mask'), BigBird(1, 3, 2, 2, max_len=8)):
        net = model(Encoder)
        expected, names = net(IDS), net.state_dict().keys()
        sparsify_(net, first)
        assert names < net.state_dict().keys()
        assert_close(sparsify_(net, None)(IDS), expected, tolerance=1e-12)
        assert net.state_dict().keys() == names
    net, name = model(Encoder), 'attn_layers.layers.2.1.random_blocks'
    for pattern in (BigBird(1, 3, 2, 2, max_len=8), BigBird(1, 3, 2, 1, seed=3, max_len=8)):
        sparsify_(net, pattern)
        assert torch.equal(net.state_dict()[name], pattern.drawn(2, 1))
    net.state_dict()[name].add_(-1)
    table = net.state_dict()[name].clone()
    assert torch.equal(sparsify_(net, pattern).state_dict()[name], table)


def translator():
    sizes = {f'{side}_{name}': 8 for side in ('enc', 'dec') for name in ('num_tokens', 'max_seq_len')}
    return XTransformer(dim=16, enc_depth=1, dec_depth=1, **sizes)


def test_what_is_frozen_stays_frozen():
    for net in (model(Encoder), model(Encoder).requires_grad_(False)):
        learns = net.attn_layers.layers[0][1].to_q.weight.requires_grad
        sparsify_(net, Sliding(2) | Global('mask'))
        assert {p.requires_grad for p in net.parameters()} == {learns}


def test_refusals():
    net = model(stack=dict(attn_talking_heads=True))
    before = net.config
    for words, error, call in (
        ('sparse_pattern', ValueError, lambda: sparsify_(net, Sliding(3))(IDS)),
        ('not for a causal stack', ValueError, lambda: sparsify_(model(), 'bigbird')),
        ('at least what it is, 8', ValueError, lambda: sparsify_(model(), Sliding(3), max_seq_len=4)),
        ('`axial_abs_pos_emb`', ValueError, lambda: sparsify_(model(axial_abs_pos_emb=(2, 4)), None, max_seq_len=9)),
        ('is no argument of a Decoder', ValueError, lambda: sparsify_(Decoder(**STACK), None, max_seq_len=9)),
        ('of its `net`', TypeError, lambda: sparsify_(AutoregressiveWrapper(model()), None)),
        ('ask it of its `encoder` and its `decoder.net`', TypeError, lambda: sparsify_(translator(), None)),
        (r'`net` must .*got 3', TypeError, lambda: sparsify_(3, None)),
        (r'`max_seq_len` must .*got 2.5', TypeError, lambda: sparsify_(model(), None, max_seq_len=2.5)),
    ):
        with pytest.raises(error, match=words):
            call()
    assert net.config == before
    changed = model()
    changed.attn_layers.layers[0][1].to_q = torch.nn.Sequential(torch.nn.Linear(16, 16))
    with pytest.raises(ValueError, match=r'`layers.0.1.to_q` was changed'):
        sparsify_(changed, Sliding(3))
