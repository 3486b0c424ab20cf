"""Kinds of branch that users add: a causal convolution under the laws that matter, and refusals by name."""

import pickle

import pytest
import torch
import torch.nn.functional as F
from building import vectors
from law_cases import randomise
from oracles import assert_close
from torch import nn

from x_transformers import AutoregressiveWrapper, Decoder, Encoder, TransformerWrapper
from x_transformers.features import KINDS, Kind
from x_transformers.flags import ConfigError, Ring

SIZES = dict(dim=16, heads=2, attn_dim_head=8, verbose=False)
LAYOUT = ('a', 'f', 'conv', 'f', 'conv', 'a', 'f')


class Convolution(nn.Module):
    """Each feature of a token is a sum of its own and those of the tokens before, padding left out."""

    def __init__(self, dim, width=3):
        super().__init__()
        self.weight, self.width = nn.Parameter(torch.randn(dim, width)), width

    def forward(self, x, mask=None):
        x = x if mask is None else x * mask.unsqueeze(-1)
        return torch.einsum(
            'b n d w, d w -> b n d', F.pad(x, (0, 0, self.width - 1, 0)).unfold(1, self.width, 1), self.weight
        )


class RememberingConvolution(Convolution):
    """The same, reading the rows before the new ones from a ring."""

    def forward(self, x, mask, window):
        x = x if mask is None else x * mask[:, mask.shape[1] - x.shape[1] :].unsqueeze(-1)
        rows = window.append(x)
        front = self.width - 1 + x.shape[1] - rows.shape[1]
        rows = F.pad(rows, (0, 0, front, 0)).unfold(1, self.width, 1)
        return torch.einsum('b n d w, d w -> b n d', rows, self.weight)


def ring_of(call):
    return {'mask': call.token_mask, 'window': call.state('window', call.step)}


class Gate(nn.Module):
    """Looks at each token alone."""

    def __init__(self, dim):
        super().__init__()
        self.to_gate = nn.Linear(dim, dim)

    def forward(self, x):
        return x * self.to_gate(x).sigmoid()


@pytest.fixture(autouse=True)
def _kinds(monkeypatch):
    monkeypatch.setitem(
        KINDS, 'conv', Kind(lambda stack, _: Convolution(stack.dim), lambda call: {'mask': call.token_mask})
    )
    monkeypatch.setitem(KINDS, 'gate', Kind(lambda stack, _: Gate(stack.dim), remembers={}))

    kept = Kind(lambda stack, _: RememberingConvolution(stack.dim), ring_of, remembers={'window': Ring(2)})
    monkeypatch.setitem(KINDS, 'ring', kept)


def stack(build=Decoder, layers=LAYOUT, **options):
    torch.manual_seed(0)
    return randomise(build(**{**SIZES, **options}, custom_layers=layers).double()).eval()


def twice():
    KINDS['other'] = KINDS['ring']
    try:
        stack(layers=('ring', 'other'))
    finally:
        del KINDS['other']


def test_it_is_the_branch_that_was_built():
    net, x = stack(layers=('conv', 'f', 'conv')), vectors(2, 7, 16)
    out = x
    for norms, branch, _ in net.layers:
        read = norms[0](out)
        if isinstance(branch, Convolution):  # by hand, token by token
            shifted = [F.pad(read, (0, 0, back, 0))[:, : x.shape[1]] for back in (2, 1, 0)]
            out = out + sum(t * w for t, w in zip(shifted, branch.weight.T, strict=True))
        else:
            out = out + branch(read)
    assert_close(net(x), net.final_norm(out))


def test_no_token_sees_a_later_one_or_another_row():
    net, x = stack(rotary_pos_emb=True), vectors(3, 7, 16)
    changed = torch.cat((x[:, :4], vectors(3, 3, 16) + 1), dim=1)
    assert torch.allclose(net(changed)[:, :4], net(x)[:, :4], atol=1e-12)
    assert_close(net(x)[1:2], net(x[1:2]))


def test_stacks_inside_of_a_stack(monkeypatch):
    """Alike, but for flags of their branches."""

    def inner(outer, index):
        own = {'attn_qk_head_norm': 'rms'} if index == 1 else {}
        return Encoder(dim=outer.dim, depth=1, heads=2, attn_dim_head=8, **own)

    monkeypatch.setitem(KINDS, 'stack', Kind(inner))
    net, x = stack(layers=('stack',) * 4), vectors(1, 5, 16)
    out = x
    for norms, branch, _ in net.layers:
        out = out + branch(norms[0](out))
    assert_close(net(x), net.final_norm(out))
    assert [hasattr(layer[1].layers[0][1], 'q_norm') for layer in net.layers] == [False, True, False, False]


@pytest.mark.parametrize('build', [Encoder, Decoder])
def test_padding_tells_nothing(build):
    """On the right, inside, and on the left, where a row is as if it began with its first token."""
    net, x = stack(build, rotary_pos_emb=True), vectors(2, 7, 16)
    real = torch.tensor([[True] * 7, [True, True, False, True, True, False, False]])
    other = torch.where(real.unsqueeze(-1), x, 100.0)
    assert torch.allclose(net(x, mask=real)[real], net(other, mask=real)[real], atol=1e-12)
    if build is Decoder:
        start = torch.tensor([0, 3])
        padded = torch.cat((torch.full((2, 3, 16), 50.0, dtype=x.dtype), x), dim=1)[1:]
        assert_close(net(padded, seq_start_pos=start[1:])[:, 3:], net(x[1:]))


def test_round_trips():
    model = TransformerWrapper(num_tokens=9, max_seq_len=8, attn_layers=stack()).double().eval()
    ids = torch.arange(8)[None] % 9
    twin = TransformerWrapper.from_config(model.config).double().eval()
    twin.load_state_dict(model.state_dict())
    assert torch.equal(twin(ids), model(ids)) and torch.equal(pickle.loads(pickle.dumps(model))(ids), model(ids))
    assert 'layers 0a 1f 2conv 3f 4conv 5a 6f, conv is Convolution' in model.explain()
    assert not model.can_cache_kv
    prompt, wrapper = ids[:, :3], AutoregressiveWrapper(model)
    with torch.no_grad():
        assert torch.equal(wrapper.generate(prompt, 3, temperature=0.0)[:, :1], model(prompt)[:, -1:].argmax(dim=-1))


def test_what_looks_at_each_token_alone_is_cached():
    net, x = stack(layers=('a', 'gate', 'f', 'a'), rotary_pos_emb=True), vectors(2, 6, 16)
    whole = net(x)
    first, trace = net(x[:, :4], return_hiddens=True)
    assert_close(torch.cat((first, net(x, cache=trace)), dim=1), whole)


def test_what_it_remembers_is_the_whole_sequence():
    """A pass in parts, padding and all, generation, and what a cache can be done to."""
    whole, x = stack(rotary_pos_emb=True), vectors(2, 9, 16)
    net = stack(layers=tuple({'conv': 'ring'}.get(kind, kind) for kind in LAYOUT), rotary_pos_emb=True)
    net.load_state_dict(whole.state_dict())
    real = torch.tensor([[True] * 9, [False] * 3 + [True] * 6])
    for given in ({}, {'mask': real}, {'seq_start_pos': torch.tensor([0, 3])}):
        wanted, parts, cache = whole(x, **given), [], None
        for stop in (4, 5, 9):
            own = {name: t[:, :stop] if name == 'mask' else t for name, t in given.items()}
            out, cache = net(x[:, :stop], cache=cache, return_hiddens=True, **own)
            parts.append(out)
        made = torch.cat(parts, dim=1)
        assert_close(made[real], wanted[real]) if given else assert_close(made, wanted)
        assert_close(net(x, **given)[real], wanted[real])
    held = net(x[:, :6], return_hiddens=True)[1].cache
    assert_close(net(x.flip(0), cache=held.reorder(torch.tensor([1, 0]))), whole(x.flip(0))[:, 6:])
    assert_close(net(x[:, :7], cache=held.crop(5)), whole(x)[:, 5:7])
    with pytest.raises(ValueError, match='window'):
        held.crop(2)
    model = TransformerWrapper(num_tokens=9, max_seq_len=16, attn_layers=net).double().eval()
    wrapper, prompt = AutoregressiveWrapper(model), torch.arange(6).view(2, 3)
    assert model.can_cache_kv
    made = wrapper.generate(prompt, 6, temperature=0.0)
    assert torch.equal(made, wrapper.generate(prompt, 6, temperature=0.0, cache_kv=False))


def test_training():
    x = vectors(2, 5, 16).requires_grad_()
    found = []
    for again in (False, True):
        net = stack(checkpoint_layers=again, layer_dropout=0.3).train()
        torch.manual_seed(3)
        found.append(torch.autograd.grad(net(x).square().sum(), (x, *net.parameters()), allow_unused=True))
    for one, other in zip(*found, strict=True):
        assert (one is None) == (other is None)
        if one is not None:
            assert_close(one, other)


@pytest.mark.slow
def test_compiled():
    x = vectors(2, 5, 16).requires_grad_()
    torch._dynamo.reset()
    net = stack()
    assert_close(torch.compile(net, fullgraph=True, backend='eager')(x), net(x))


@pytest.mark.parametrize(
    ('act', 'error', 'message'),
    [
        (lambda: stack(layers=('a', 'cnov')), ConfigError, "got 'cnov', did you mean `conv`"),
        (lambda: stack(layers=('a', 3)), ConfigError, r"a tuple with one entry per layer.*got \('a', 3\)"),
        (lambda: Kind(None), ConfigError, '`build` of a Kind must be a function, got None'),
        (lambda: Kind(Gate, remembers=('x',)), ConfigError, '`remembers` of a Kind must map'),
        (lambda: stack()(vectors(1, 2, 16), cache=stack().double()), ValueError, '`cache` was given, but'),
        (lambda: Kind(Gate, remembers={'x': 3}), ConfigError, '`remembers` of a Kind must map'),
        (lambda: stack(layers=('ring', 'a'))(vectors(1, 2, 16), mems=[vectors(1, 2, 16)]), ValueError,
         "`mems` cannot be combined with layers of kind 'ring'"),
        (lambda: twice(), ConfigError, 'must not both have a state `window`'),
        (lambda: stack()(vectors(1, 2, 16), document_ids=torch.zeros(1, 2).long()), ValueError,
         '`document_ids` cannot be combined with `conv`: such a layer reads other tokens'),
        (lambda: stack()(vectors(1, 2, 16), mems=[vectors(1, 2, 16)] * 2), ValueError,
         "`mems` cannot be combined with layers of kind 'conv'"),
    ],
)  # fmt: skip
def test_refusals(act, error, message):
    with pytest.raises(error, match=message):
        act()
