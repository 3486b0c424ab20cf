"""Operators: features that attend in their own way, what they go with, and attention put together from its parts."""

import itertools
from typing import ClassVar

import pytest
import torch
import torch.nn.functional as F
from building import vectors
from law_cases import randomise
from oracles import assert_close

from x_transformers import Attention, Decoder, Encoder
from x_transformers.attend import Attend
from x_transformers.core.merging import merge_outputs
from x_transformers.features import AttentionFeature, Input, flag
from x_transformers.flags import ConfigError, none, size
from x_transformers.kernels.operators import HANDLED

SIZES = dict(dim=16, heads=4, attn_dim_head=8, verbose=False)
B, N = 2, 11


class Nearby(AttentionFeature):
    """The last few keys of each query, a chunk of queries at a time:  time and memory O(n w)"""

    nearby = flag(None, 'how many tokens before itself a query sees', size | none, example=3)
    handles = ('causal', 'masks', 'biases', 'past')

    def attend(self, q, k, v, call):
        w, rows, keys = self.nearby, q.shape[-2], k.shape[-2]
        chunks, first = -(-rows // w), keys - rows
        i = torch.arange(chunks * w, device=q.device).view(-1, w)
        j = first + i[:, :1] + torch.arange(-w, w, device=q.device)
        b, h = (torch.arange(n, device=q.device).view(-1, *[1] * (4 - axis)) for axis, n in enumerate(q.shape[:2]))
        at = b, h, i.clamp(max=rows - 1)[:, :, None], j.clamp(0, keys - 1)[:, None]
        near, seen, bias = first + i[:, :, None] - j[:, None], call.mask_entry(), call.bias_entry()
        visible = (near >= 0) & (near <= w) & (j >= 0)[:, None] & (True if seen is None else seen(*at))
        cut = F.pad(q, (0, 0, 0, chunks * w - rows)).unflatten(2, (-1, w))
        logits = (cut * call.scale) @ k[:, :, at[3][:, 0]].mT + (0 if bias is None else bias(*at))
        logits = logits.masked_fill(~visible, -torch.inf)
        lse = logits.logsumexp(dim=-1)
        weights = (logits - lse.masked_fill(lse == -torch.inf, 0.0)[..., None]).exp()
        out = weights @ v[:, :, at[3][:, 0]]
        return out.flatten(2, 3)[:, :, :rows], lse.flatten(2, 3)[..., :rows]


class Bare(AttentionFeature):
    """Sees everything, and handles nothing."""

    bare = flag(False, 'attend bare')

    def attend(self, q, k, v, call):
        return (q @ k.mT * call.scale).softmax(dim=-1) @ v, None


class Weighed(AttentionFeature):
    call_inputs: ClassVar = {'weighed': Input('b h i j')}

    def weights(self, attn, call):
        return attn * call.inputs['weighed']


def pair(kind=Decoder, near=3, **flags):
    """A stack that attends nearby, and the same one with a window as a mask."""
    nets = [
        kind(**{**SIZES, 'depth': 2, **flags}, **own).double()
        for own in (dict(features=(Nearby,), nearby=near), dict(attn_max_attend_past=near))
    ]
    randomise(nets[0])
    nets[1].load_state_dict(nets[0].state_dict())
    return nets[0], nets[1].eval()


FLAGS = {
    'plain': {},
    'rotary': dict(rotary_pos_emb=True),
    'slopes': dict(alibi_pos_bias=True),
    'buckets': dict(rel_pos_bias=True),
    'network': dict(dynamic_pos_bias=True),
    'gates': dict(attn_data_dependent_alibi=True),
    'one key head': dict(attn_one_kv_head=True),
    'two key heads': dict(attn_kv_heads=2),
    'gated': dict(attn_gate_values=True, attn_gate_value_heads=True),
    'narrow values': dict(attn_value_dim_head=5),
}
HOLES = torch.tensor([[1, 1, 0, 0, 0, 0, 0, 1, 1, 0, 1], [0, 0, 1, 1, 1, 1, 1, 1, 1, 1, 1]], dtype=torch.bool)


@pytest.mark.parametrize('flags', FLAGS.values(), ids=FLAGS.keys())
@pytest.mark.parametrize('near', [1, 3, 20])
def test_an_operator_gives_what_its_dense_twin_gives(flags, near):
    """With any mask, a bias of the caller's, and with gradients."""
    own, twin = pair(near=near, **flags)
    x = vectors(B, N, 16).requires_grad_()
    masks = (HOLES, dict(mask=HOLES), dict(attn_mask=HOLES[:, None, None].expand(-1, -1, N, -1)))
    for inputs in ({}, masks[1], masks[2], dict(attn_bias=vectors(B, 4, N, N))):
        out, expected = own(x, **inputs), twin(x, **inputs)
        (grad,), (wanted,) = (torch.autograd.grad(t.sin().sum(), x) for t in (out, expected))
        assert_close(out, expected, tolerance=1e-10)
        assert_close(grad, wanted, tolerance=1e-10)


@pytest.mark.parametrize('flags', [{}, dict(rotary_pos_emb=True), dict(alibi_pos_bias=True)], ids=str)
def test_an_operator_with_a_cache(flags):
    own, _ = pair(**flags)
    x, cache, outs = vectors(B, N, 16), None, []
    for start, stop in itertools.pairwise((0, 4, 5, 9, N)):
        out, cache = own(x[:, :stop], cache=cache, return_hiddens=True)
        outs.append(out[:, start - stop :])
    assert_close(torch.cat(outs, dim=1), own(x))


def test_log_sums_are_those_of_the_twin():
    attn = Attention(16, heads=2, dim_head=8, causal=True, features=(Nearby,), nearby=2).double()
    found = {}

    def spying(q, k, v, call, attend=attn.features.by_stage['attend'][0].attend):
        found['out'], found['log_sums'] = attend(q, k, v, call)
        found['q'], found['k'] = q, k
        return found['out'], found['log_sums']

    attn.features.by_stage['attend'][0].__dict__['attend'] = spying
    attn(vectors(B, N, 16), mask=HOLES)
    i, j = torch.arange(N)[:, None], torch.arange(N)
    seen = ((i >= j) & (i - j <= 2)) & HOLES[:, None, None]
    logits = (found['q'] @ found['k'].mT * 8**-0.5).masked_fill(~seen, -torch.inf)
    assert_close(found['log_sums'].exp(), logits.exp().sum(dim=-1))
    assert (found['out'][~seen.any(-1).expand(-1, 2, -1)] == 0).all()


@pytest.mark.parametrize('watch', ['hook', 'inside', 'replaced'])
def test_an_operator_under_hooks_and_replacements(watch):
    own, twin = pair(near=2, alibi_pos_bias=True)
    x, seen = vectors(B, N, 16), []
    wanted = twin(x, mask=HOLES)
    for layer in own.layers:
        if layer.kind != 'a':
            continue
        attend = layer[1].attend
        if watch == 'hook':
            attend.register_forward_pre_hook(lambda m, args, kwargs: seen.append(kwargs['mask']), with_kwargs=True)
        if watch == 'inside':
            layer[1].attend = Around(attend, seen)
        if watch == 'replaced':
            attend.forward = lambda *args, f=attend.forward, **kwargs: seen.append(kwargs['mask']) or f(*args, **kwargs)
    assert_close(own(x, mask=HOLES), wanted)
    assert len(seen) == 2 and all(torch.equal(mask, HOLES[:, None, None]) for mask in seen)


class Around(torch.nn.Module):
    def __init__(self, inner, seen):
        super().__init__()
        self.inner, self.seen = inner, seen

    def forward(self, *args, **kwargs):
        self.seen.append(kwargs['mask'])
        return self.inner(*args, **kwargs)


# refusals


CALLS = {
    'causal': (dict(causal=True), {}, '`causal`: its queries see later keys'),
    'masks': ({}, dict(mask=HOLES), '`mask`: it hides no keys'),
    'window': (dict(max_attend_past=2), {}, '`max_attend_past`: it hides no keys'),
    'biases': ({}, dict(attn_bias=torch.zeros(N, N)), '`attn_bias`: it hides no keys'),
    'curves': (dict(use_rel_proj_pos_bias=True), {}, '`use_rel_proj_pos_bias`: it forms no scores to add to'),
    'keys': (dict(num_mem_kv=2), {}, 'keys that other flags put in front'),
    'mems': ({}, dict(mem=torch.zeros(B, 2, 16)), '`mems`: its keys are those of its queries'),
    'context': ({}, dict(context=torch.zeros(B, 3, 16)), '`context`: its keys are those of its queries'),
    'maps': ({}, dict(keep_maps=True), '`return_attn` or others that ask for its scores: it keeps none'),
}


@pytest.mark.parametrize('name', CALLS)
def test_what_an_operator_does_not_handle_is_refused_by_name(name):
    flags, inputs, words = CALLS[name]
    attn = Attention(16, heads=2, dim_head=8, features=(Bare,), bare=True, **flags)
    with pytest.raises(ValueError) as error:
        attn(torch.zeros(B, N, 16), **inputs)
    assert str(error.value) == f'`bare` cannot be combined with {words}'


def test_more_that_an_operator_does_not_handle():
    attn = Attention(16, heads=2, dim_head=8, features=(Bare,), bare=True, dropout=0.5)
    with pytest.raises(ValueError, match='`bare` cannot be combined with `dropout`: it forms no attention weights'):
        attn(torch.zeros(B, N, 16))
    assert attn.eval()(torch.zeros(B, N, 16)).shape == (B, N, 16)
    attn = Attention(16, heads=2, dim_head=8, causal=True, features=(Nearby,), nearby=2, use_rel_proj_pos_bias=True)
    words = '`nearby` cannot be combined with `use_rel_proj_pos_bias`, which has no form for one query and one key'
    with pytest.raises(ValueError, match=words):
        attn(torch.zeros(B, N, 16))
    attn = Attention(16, heads=2, dim_head=8, features=(Bare, Weighed), bare=True)
    attn(torch.zeros(B, N, 16))
    with pytest.raises(ValueError, match='`bare` cannot be combined with `weighed`, which needs the scores'):
        attn(torch.zeros(B, N, 16), weighed=torch.ones(B, 2, N, N))
    with pytest.raises(TypeError, match=r"`handles` of Odd must be some of causal, masks.*, got 'mask'"):
        type('Odd', (AttentionFeature,), {'handles': ('mask',)})
    assert 'groups' in HANDLED


@pytest.mark.parametrize(
    ('flags', 'message'),
    [
        (dict(bare=True, nearby=2), '`bare` and `nearby` both choose the attend, set only one'),
        (
            dict(bare=True, attn_sparse_topk=2),
            '`bare` cannot be combined with `attn_sparse_topk`: it takes the place of normalizer, at `attend`',
        ),
        (
            dict(nearby=2, attn_talking_heads=True),
            '`nearby` cannot be combined with `attn_talking_heads`: it takes the place of ',
        ),
        (
            dict(bare=True, attn_flash=True),
            '`attn_flash=True` cannot be combined with `bare`: it attends in its own way',
        ),
    ],
    ids=str,
)
def test_operators_exclude_what_acts_on_scores(flags, message):
    with pytest.raises(ConfigError) as error:
        Encoder(**SIZES, depth=1, features=(Bare, Nearby), **flags)
    assert message.replace('`attn_', '`').replace('`', '') in str(error.value).replace('`attn_', '`').replace('`', '')


def test_maps_that_there_are_not():
    attn = Attention(16, heads=2, dim_head=8, features=(Bare,), bare=True)
    _, trace = attn(torch.zeros(B, N, 16), return_intermediates=True)
    with pytest.raises(ValueError, match='`bare` keeps no maps of its scores'):
        trace.post_softmax_attn  # noqa: B018


def test_what_explains_the_choice():
    lines = Decoder(**SIZES, depth=1, attn_sigmoid=True).explain()
    assert 'EagerInBlocks, Eager; not Fused (`sigmoid`: the fused kernel forms no scores)' in lines
    assert 'Fused, Flex, FusedInBlocks, EagerInBlocks, Eager; scores' in Decoder(**SIZES, depth=1).explain()
    assert 'Own; not Fused (`bare`: it attends' in Encoder(**SIZES, depth=1, features=(Bare,), bare=True).explain()
    assert (
        'EagerInBlocks, Eager; not Fused (`flash=False`: the formula is wanted)'
        in Decoder(**SIZES, depth=1, attn_flash=False).explain()
    )


def test_an_operator_stands_alone():
    """In `Attend` without a layer there are only features of scores."""
    assert not any('attend' in cls.runs_at() for cls in Attend.catalogue)


# parts put together


@pytest.mark.parametrize('seed', range(3))
def test_disjoint_keys_put_together(seed):
    """Whatever keys each part has, and if a row sees none of them, or none at all."""
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(2, 3, 5, 9, generator=generator, dtype=torch.float64) * 30
    logits[1] -= 1000  # whose exponential, of a part without keys, is too large for a number
    v = torch.randn(2, 3, 9, 4, generator=generator, dtype=torch.float64)
    hidden = torch.rand(logits.shape, generator=generator) < 0.6
    hidden[0, 0, :2] = True
    logits = logits.masked_fill(hidden, -torch.inf).requires_grad_()
    part = torch.randint(0, 3, (9,), generator=generator)

    def attention(chosen):
        own = logits[..., chosen]
        return own.softmax(dim=-1).nan_to_num() @ v[:, :, chosen], own.logsumexp(dim=-1)

    out, lse = merge_outputs([attention(part == n) for n in range(4)])  # the last one has no key
    whole, sums = attention(part >= 0)
    assert_close(out, whole)
    assert torch.equal(lse == -torch.inf, sums == -torch.inf) and (out[0, 0, :2] == 0).all()
    assert_close(lse.exp(), sums.exp())
    assert_close(merge_outputs([attention(part >= 0)])[0], whole)


def test_gradients_of_what_is_put_together():
    outs, sums = vectors(3, 2, 4, 5).requires_grad_(), vectors(3, 2, 4).requires_grad_()
    assert torch.autograd.gradcheck(lambda o, z: merge_outputs(list(zip(o, z, strict=True))), (outs, sums))
    blind = torch.full((2, 4), -torch.inf, dtype=torch.float64)
    out, _ = merge_outputs([(outs[0], sums[0]), (outs[1], blind)])
    out.sum().backward()
    assert outs.grad.isfinite().all() and sums.grad.isfinite().all() and (outs.grad[1] == 0).all()
