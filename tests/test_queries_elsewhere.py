"""Queries that are not the tokens in their order: fewer, more, permuted, or different in each row.

A query made from a token sees what that token sees, wherever it stands in the tensor of queries: so a layer that asks
with some tokens gives the outputs of these tokens, whatever flag is on.
"""

import pytest
import torch
from oracles import assert_close
from sweeps import crossed
from torch import nn
from toy_nets import vectors_of as vectors

from x_transformers import Attention, Decoder, Encoder
from x_transformers.core import rows
from x_transformers.features import ATTENTION, AttentionFeature
from x_transformers.flags import flag, none, one_of
from x_transformers.x_transformers import AlibiPositionalBias

B, N = 2, 7
CHOICES = {
    'every second': lambda b, n: torch.arange(0, n, 2),
    'the first half': lambda b, n: torch.arange((n + 1) // 2),
    'reversed': lambda b, n: torch.arange(n).flip(0),
    'more than there are': lambda b, n: torch.arange(2 * n) % n,
    'of each row': lambda b, n: torch.stack(
        [torch.randperm(n, generator=torch.Generator().manual_seed(s)) for s in range(b)]
    ),
}
PERMUTED = ('reversed', 'of each row')


class Elsewhere(AttentionFeature):
    """Ask with some of the tokens."""

    elsewhere = flag(None, 'which tokens ask', one_of(*CHOICES) | none, example='reversed')

    def select_inputs(self, x):
        places = CHOICES[self.elsewhere](*x.shape[:2])
        return chosen(x, places), x, x, places


class Slanted(AttentionFeature):
    """A bias and a mask of one's own, by positions."""

    slanted = flag(False, 'a bias of the squared distance; what is five tokens away is hidden')

    def bias(self, call):
        return self.wide(-0.1 * (call.q_pos.unsqueeze(-1) - call.k_pos.unsqueeze(-2)).double() ** 2)

    def mask(self, call):
        return self.wide(call.q_at.unsqueeze(-1) - call.k_at.unsqueeze(-2) != 5)

    def wide(self, t):
        return t if t.ndim == 2 else t.unsqueeze(1)


def chosen(t, places):
    return t[:, places] if places.ndim == 1 else t[torch.arange(len(t))[:, None], places]


def randomised(net):
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.add_(0.3 * torch.randn(parameter.shape, generator=generator, dtype=torch.float64))
    return net.eval()


def layers(choice, causal=True, **flags):
    """A layer that asks with all tokens, and the same one asking with some."""
    pair = [
        Attention(16, heads=2, dim_head=8, causal=causal, features=(Elsewhere, *ATTENTION), **own, **flags).double()
        for own in ({}, dict(elsewhere=choice))
    ]
    pair[1].load_state_dict(randomised(pair[0]).state_dict())
    return pair[0], pair[1].eval()


def same_rows(choice, plain, other, x, **inputs):
    expected = chosen(plain(x, **inputs), CHOICES[choice](*x.shape[:2]))
    assert_close(other(x, **inputs), expected)


LAYERS = {
    'plain': {},
    'fused': dict(flash=True),
    'the formula': dict(flash=False),
    'one key head': dict(one_kv_head=True),
    'normed': dict(qk_norm=True),
    'window': dict(max_attend_past=2),
    'contextual': dict(use_cope=True),
    'gates': dict(data_dependent_alibi=True),
    'gates of rows': dict(data_dependent_alibi=True, data_dependent_alibi_per_row=True),
    'curves': dict(use_rel_proj_pos_bias=True),
    'memories': dict(num_mem_kv=2, add_zero_kv=True),
    'talking heads': dict(pre_talking_heads=True, post_talking_heads=True),
    'the best few': dict(sparse_topk=2),
    'sink': dict(head_learned_sink=True),
    'vectors for distances': dict(shaw_rel_pos=True, shaw_max_distance=3),
    'sigmoid': dict(sigmoid=True),
    'entmax': dict(use_entmax15=True),
    'signed': dict(cog_signed=True),
    'laser': dict(laser=True),
    'distances': dict(l2_distance=True),
    'latents': dict(use_latent_kv=True, dim_latent_kv=6, use_latent_q=True, dim_latent_q=6),
    'gated': dict(gate_values=True, gate_value_heads=True),
    'attention on attention': dict(on_attn=True),
    'orthogonal': dict(orthog_projected_values=True),
    'orthogonal heads': dict(orthog_projected_values_per_head=True),
}
MASK = torch.tensor([[1, 1, 0, 1, 0, 1, 1], [1, 0, 0, 1, 1, 1, 0]], dtype=torch.bool)


NEEDS_ORDER = ('contextual', 'gates of rows', 'xpos')
ORDERED = [(name, causal) for name in LAYERS for causal in (True, False) if causal or name not in NEEDS_ORDER]


@pytest.mark.parametrize(('at', 'choice'), crossed(ORDERED, list(CHOICES)))
def test_every_feature_follows_its_queries(at, choice):
    name, causal = at
    plain, other = layers(choice, causal, **LAYERS[name])
    for inputs in ({}, dict(mask=MASK), dict(attn_mask=MASK[:, None, None])):
        same_rows(choice, plain, other, vectors(B, N, 16), **inputs)


def test_causal_attention_by_its_formula():
    """Every second token, with a penalty on distance, in loops."""
    _, layer = layers('every second')
    layer.flash = None
    slopes = AlibiPositionalBias(2, 2)
    x = vectors(1, N, 16)
    q, k, v = (t(x)[0].view(N, 2, 8) for t in (layer.to_q, layer.to_k, layer.to_v))
    rows = []
    for place in range(0, N, 2):
        heads = []
        for h in range(2):
            logits = torch.stack(
                [
                    q[place, h] @ k[j, h] * 8**-0.5 - slopes.slopes[h, 0, 0].double() * (place - j)
                    for j in range(place + 1)
                ]
            )
            heads.append(logits.softmax(0) @ v[: place + 1, h])
        rows.append(torch.cat(heads))
    assert_close(layer(x, rel_pos=slopes), layer.to_out(torch.stack(rows))[None])


@pytest.mark.parametrize('choice', CHOICES)
@pytest.mark.parametrize('name', ['plain', 'the formula', 'window', 'gates', 'gates of rows', 'contextual', 'memories'])
def test_in_blocks(monkeypatch, name, choice):
    plain, other = layers(choice, **LAYERS[name])
    x, slopes = vectors(B, N, 16), AlibiPositionalBias(2, 2).double()
    cases = ({}, dict(mask=MASK), dict(rel_pos=slopes))
    expected = [chosen(plain(x, **inputs), CHOICES[choice](B, N)) for inputs in cases]
    monkeypatch.setattr(rows, 'LARGE', {'cpu': 0, 'cuda': 0})
    monkeypatch.setattr(rows, 'BLOCK', {'cpu': 1, 'cuda': 1})
    monkeypatch.setattr(rows, 'FEWEST_ROWS', 3)
    for inputs, wanted in zip(cases, expected, strict=True):
        assert_close(other(x, **inputs), wanted)


def test_gradients_in_blocks(monkeypatch):
    plain, other = layers('every second')
    x, slopes = vectors(B, N, 16), AlibiPositionalBias(2, 2).double()
    loss = chosen(plain(x, rel_pos=slopes), torch.arange(0, N, 2)).square().sum()
    expected = torch.autograd.grad(loss, list(plain.parameters()))
    monkeypatch.setattr(rows, 'LARGE', {'cpu': 0, 'cuda': 0})
    monkeypatch.setattr(rows, 'FEWEST_ROWS', 3)
    found = torch.autograd.grad(other(x, rel_pos=slopes).square().sum(), list(other.parameters()))
    for ours, theirs in zip(found, expected, strict=True):
        assert_close(ours, theirs)


# in a stack, which brings positions, caches and memories


STACKS = {
    'rotary': dict(rotary_pos_emb=True),
    'some heads': dict(rotary_pos_emb=True, rotate_num_heads=1),
    'xpos': dict(rotary_xpos=True),
    'rotated values': dict(rotary_pos_emb=True, attn_rotate_values=True),
    'polar': dict(polar_pos_emb=True),
    'infused': dict(position_infused_attn=True),
    'alibi': dict(alibi_pos_bias=True),
    't5': dict(rel_pos_bias=True),
    'dynamic': dict(dynamic_pos_bias=True),
    'vectors for distances': dict(shaw_rel_pos=True),
    'window': dict(attn_max_attend_past=2),
    'gates': dict(attn_data_dependent_alibi=True),
    "one's own": dict(slanted=True),
    'gates of rows': dict(attn_data_dependent_alibi_per_row=True, attn_data_dependent_alibi=True),
    'curves': dict(attn_use_rel_proj_pos_bias=True),
    'latents': dict(rotary_pos_emb=True, attn_use_latent_kv=True, attn_dim_latent_kv=6),
    'orthogonal': dict(attn_orthog_projected_values=True),
    'value residual': dict(add_value_residual=True, depth=2, rotary_pos_emb=True),
}


def stacks(choice, kind=Decoder, **flags):
    """The same for stacks of one layer, from which its output can be told; with two, the second one asks otherwise."""
    depth = flags.pop('depth', 1)
    sizes = dict(
        dim=16,
        heads=2,
        attn_dim_head=8,
        custom_layers=('a',) * depth,
        depth=1,
        verbose=False,
        pre_norm_has_final_norm=False,
    )
    pair = []
    for own in (None, choice):
        asking = {} if own is None else dict(attn_elsewhere=own if depth == 1 else (None, own))
        pair.append(kind(**sizes, features=(Elsewhere, Slanted, *ATTENTION), **asking, **flags).double())
    pair[1].load_state_dict(randomised(pair[0]).state_dict())
    return pair[0], pair[1].eval()


def moved(stack, x, places, **inputs):
    """What a stack of one layer gives if its branch asks with permuted tokens."""
    return x + chosen(stack(x, **inputs) - x, places)


SINGLE = [name for name in STACKS if name != 'value residual']


@pytest.mark.parametrize(
    ('at', 'choice'),
    crossed([(n, k) for n in SINGLE for k in (Decoder, Encoder) if k is Decoder or n not in NEEDS_ORDER], PERMUTED),
)
def test_positions_of_a_stack_follow_the_queries(at, choice):
    name, kind = at
    plain, other = stacks(choice, kind, **STACKS[name])
    x, places = vectors(B, N, 16), CHOICES[choice](B, N)
    cases = [{}, dict(mask=MASK), dict(pos=torch.tensor([[0, 1, 2, 5, 6, 9, 11], [3, 4, 5, 6, 7, 8, 20]]))]
    if kind is Decoder:
        cases.append(dict(seq_start_pos=torch.tensor([0, 3])))
        cases.append(dict(mems=[vectors(B, 3, 16, seed=5)]))
    if kind is Decoder and name in ('rotary', 'alibi', 't5', 'window'):
        cases.append(dict(document_ids=torch.tensor([[0, 0, 0, 1, 1, 1, 1], [0, 0, 1, 1, 1, 2, 2]])))
    for inputs in cases:
        expected = moved(plain, x, places, **inputs)
        real = torch.ones(B, N, dtype=torch.bool)
        if 'seq_start_pos' in inputs:  # rows of padding mean nothing
            real = chosen(torch.arange(N) >= inputs['seq_start_pos'][:, None], places)
        assert_close(other(x, **inputs)[real], expected[real])


@pytest.mark.parametrize('choice', PERMUTED)
@pytest.mark.parametrize('name', SINGLE)
def test_with_a_cache(name, choice):
    plain, other = stacks(choice, **STACKS[name])
    x, cache = vectors(B, N, 16), None
    whole = plain(x) - x
    for start, stop in ((0, 3), (3, 4), (4, 7)):
        new = x[:, start:stop]
        out, cache = other(new, cache=cache, input_not_include_cache=True, return_hiddens=True)
        places = CHOICES[choice](B, stop - start)
        assert_close(out, new + chosen(whole[:, start:stop], places))


def test_values_of_an_earlier_layer():
    plain, other = stacks('reversed', **STACKS['value residual'])
    x = vectors(B, N, 16)
    _, trace = plain(x, return_hiddens=True)
    before = trace.layer_hiddens[1]
    assert_close(other(x), before + (plain(x) - before).flip(1))


# what is refused


REFUSED = {
    'selective': (
        dict(selective=True),
        '`selective` cannot be combined with queries that `select_inputs` puts elsewhere',
    ),
    'over the sequence': (
        dict(orthog_projected_values_over_sequence=True, orthog_projected_values=True),
        '`orthog_projected',
    ),
    'hybrid': (dict(hybrid_module=nn.GRU(16, 16, batch_first=True)), '`hybrid_module` cannot be combined with queries'),
}


@pytest.mark.parametrize('name', REFUSED)
def test_what_needs_its_queries_in_order_says_so(name):
    flags, words = REFUSED[name]
    layer = Attention(
        16,
        heads=2,
        dim_head=8,
        features=(Elsewhere, *ATTENTION),
        elsewhere='reversed',
        causal=name == 'selective',
        **flags,
    )
    with pytest.raises(ValueError, match=words):
        layer(torch.randn(B, N, 16))


class Wrong(AttentionFeature):
    """Views that cannot be."""

    wrong = flag(None, 'what it gives', example=tuple)

    def select_inputs(self, x):
        return self.wrong(x)


MISTAKES = {
    'fewer queries': (lambda x: (x[:, ::2], x, x), 'gave 4 queries for 7 tokens: a fourth value must be'),
    'more queries': (lambda x: (x.repeat(1, 2, 1), x, x), '`select_inputs` gave 14 queries for 7 tokens'),
    'fewer keys': (lambda x: (x, x[:, 1:], x[:, 1:]), r'`select_inputs` gave inputs of \[7, 6, 6\] tokens'),
    'fewer values': (lambda x: (x, x, x[:, 1:]), r'`select_inputs` gave inputs of \[7, 7, 6\] tokens'),
    'places of others': (lambda x: (x, x, x, torch.arange(3)), r'places of torch.int64 and shape \(3,\)'),
    'places of no row': (
        lambda x: (x, x, x, torch.zeros(5, 7).long()),
        r'shape \(5, 7\), they must be .*\(7,\) or \(2, 7\)',
    ),
    'half places': (lambda x: (x, x, x, torch.arange(7.0)), 'places of torch.float32'),
    'places beyond': (
        lambda x: (x, x, x, torch.arange(7) + 1),
        '`select_inputs` must be from 0 to 6, got places from 1 to 7',
    ),
    'no tensor': (lambda x: (x, x, x, list(range(7))), '`select_inputs` must '),
}


@pytest.mark.parametrize('causal', [True, False])
@pytest.mark.parametrize('name', MISTAKES)
def test_mistakes_of_views(name, causal):
    wrong, words = MISTAKES[name]
    layer = Attention(16, heads=2, dim_head=8, causal=causal, features=(Wrong, *ATTENTION), wrong=wrong)
    with pytest.raises((ValueError, TypeError), match=words):
        layer(torch.randn(B, N, 16))


@pytest.mark.parametrize(
    'x',
    [None, 3.0, [1.0], torch.randn(16), torch.randn(7, 16), torch.randn(2, 2, 7, 16)],
    ids=lambda x: getattr(x, 'shape', x),
)
def test_what_is_no_input_is_named(x):
    with pytest.raises((ValueError, TypeError), match='`x` must '):
        Attention(16, heads=2, dim_head=8)(x)
