"""Ways in which published packages use this one, each cut down to the few lines that they rely on."""

import copy
import dataclasses
import functools
import types

import pytest
import torch
import torch.nn.functional as F
from oracles import randomised
from torch import nn
from torch.utils._pytree import tree_leaves

from x_transformers import (
    Attention,
    AutoregressiveWrapper,
    ContinuousAutoregressiveWrapper,
    ContinuousTransformerWrapper,
    CrossAttender,
    Decoder,
    Encoder,
    FeedForward,
    MultiInputTransformerWrapper,
    PagedEngine,
    TransformerWrapper,
    ViTransformerWrapper,
    XLAutoregressiveWrapper,
    XValTransformerWrapper,
)
from x_transformers.attend import Attend, Intermediates
from x_transformers.kernels import dense
from x_transformers.patterns import BlockLocal, Global
from x_transformers.x_transformers import (
    AbsolutePositionalEmbedding,
    AttentionLayers,
    LayerIntermediates,
    PolarEmbedding,
    Residual,
    RotaryEmbedding,
    ScaledSinusoidalEmbedding,
)

MAPS = dense.attention_maps
SMALL = dict(dim=32, depth=2, heads=2, attn_dim_head=16, verbose=False)

STACKS = {
    'decoder': (Decoder, {}),
    'encoder': (Encoder, {}),
    'alibi': (Decoder, dict(alibi_pos_bias=True)),
    'memories': (Decoder, dict(attn_num_mem_kv=2, attn_qk_norm=True)),
    'cross': (Decoder, dict(cross_attend=True)),
}


def pair_of(kind, own, **turned):
    """A stack that turns queries and keys itself, and one with its weights that does not."""
    theirs = kind(**SMALL, **own, **turned).eval()
    bare = kind(**SMALL, **own).eval()
    missing, unexpected = bare.load_state_dict(theirs.state_dict(), strict=False)
    assert not missing and all('pos_emb' in name for name in unexpected)
    return theirs, bare


# angles that a client computes once, and hands to stacks that have no positions of their own


@pytest.mark.parametrize('name', STACKS)
def test_rotary_angles_are_given_to_a_stack_without_any(name):
    kind, own = STACKS[name]
    theirs, bare = pair_of(kind, own, rotary_pos_emb=True)
    x, mask = torch.randn(2, 7, 32), torch.arange(7) < torch.tensor([[7], [5]])
    more = dict(mask=mask, context=torch.randn(2, 3, 32)) if own.get('cross_attend') else dict(mask=mask)
    angles = theirs.rotary_pos_emb.forward_from_seq_len(7)
    given = bare(x, rotary_pos_emb=angles, **more)
    torch.testing.assert_close(given, theirs(x, **more))
    assert not torch.allclose(given, bare(x, **more), atol=1e-3)
    torch.testing.assert_close(bare(x, rotary_pos_emb=None, **more), bare(x, **more))


def test_xpos_angles_are_given_to_a_stack_without_any():
    theirs, bare = pair_of(Decoder, {}, rotary_xpos=True)
    x, pos = torch.randn(2, 7, 32), torch.arange(7)
    angles = theirs.rotary_pos_emb(pos, centre=0)
    assert torch.is_tensor(angles[1])
    torch.testing.assert_close(bare(x, rotary_pos_emb=angles), theirs(x))


def test_given_angles_reach_a_model_and_its_gradients():
    x, pos = torch.randint(0, 9, (2, 6)), RotaryEmbedding(8)(torch.arange(6))
    net = TransformerWrapper(num_tokens=9, max_seq_len=0, attn_layers=Decoder(**SMALL))
    out = net(x, rotary_pos_emb=pos)
    assert not torch.allclose(out, net(x), atol=1e-4)
    out.square().sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in net.parameters())
    same = ContinuousTransformerWrapper(dim_in=5, max_seq_len=0, attn_layers=Encoder(**SMALL))
    same(torch.randn(2, 6, 5), rotary_pos_emb=pos)


@pytest.mark.parametrize('own', [{}, dict(rotary_pos_emb=True), dict(attn_kv_heads=1)])
def test_given_angles_with_a_cache(own):
    net, x = Decoder(**SMALL, **own).eval(), torch.randn(2, 6, 32)
    angles, _ = RotaryEmbedding(8)(torch.arange(6) * 3)
    whole = net(x, rotary_pos_emb=(angles, 1.0))
    out, cache = net(x[:, :3], rotary_pos_emb=(angles[:, :3], 1.0), return_hiddens=True)
    torch.testing.assert_close(out, whole[:, :3])
    for n in (4, 6):
        out, cache = net(x[:, :n], rotary_pos_emb=(angles[:, :n], 1.0), cache=cache, return_hiddens=True)
        torch.testing.assert_close(out[:, -1], whole[:, n - 1])


def test_angles_of_each_row():
    net, x = Encoder(**SMALL).eval(), torch.randn(2, 5, 32)
    pos = torch.tensor([[0, 1, 2, 3, 4], [0, 2, 4, 6, 8]])
    out = net(x, rotary_pos_emb=RotaryEmbedding(16)(pos))
    for row in range(2):
        alone = net(x[row : row + 1], rotary_pos_emb=RotaryEmbedding(16)(pos[row]))
        torch.testing.assert_close(out[row : row + 1], alone)


def test_polar_angles_are_given_to_a_stack_without_any():
    theirs, bare = pair_of(Decoder, {}, polar_pos_emb=True)
    x = torch.randn(2, 5, 32)
    given = bare(x, polar_pos_emb=theirs.polar_pos_emb(torch.arange(5)))
    torch.testing.assert_close(given, theirs(x))
    assert isinstance(theirs.polar_pos_emb, PolarEmbedding)


@pytest.mark.parametrize('name', ['rotary_pos_emb', 'polar_pos_emb'])
@pytest.mark.parametrize('own', [{}, dict(rotary_pos_emb=True)])
def test_given_angles_are_checked(name, own):
    net, x = Decoder(**SMALL, **own), torch.randn(1, 5, 32)
    with pytest.raises(ValueError, match=f'`{name}` got angles for 4 positions, there are 5 keys'):
        net(x, **{name: (torch.zeros(1, 4, 16), 1.0)})
    for wrong in (torch.zeros(1, 5, 16), 'table', (torch.zeros(1, 5, 16),), (1, 2)):
        with pytest.raises(TypeError, match=f'(?s)`{name}` must be a pair'):
            net(x, **{name: wrong})


def test_a_stack_of_cross_attention_alone_has_no_use_for_angles():
    net = CrossAttender(**SMALL).eval()
    x, context = torch.randn(1, 4, 32), torch.randn(1, 3, 32)
    out = net(x, context=context, rotary_pos_emb=RotaryEmbedding(16)(torch.arange(4)))
    torch.testing.assert_close(out, net(x, context=context))


# rows of a cache that a client repeats, exchanges or takes out by hand, as its own beam search does


@pytest.mark.parametrize('rows', [[1, 0], [1, 0, 1, 1], [1]])
@pytest.mark.parametrize('own', [{}, dict(rotary_pos_emb=True), dict(alibi_pos_bias=True), dict(polar_pos_emb=True)])
@pytest.mark.parametrize('hides', [None, 'seq_start_pos', 'mask'])
def test_rows_of_a_cache_are_exchanged_by_hand(rows, own, hides):
    stack = Decoder(**SMALL, **own)
    net = TransformerWrapper(num_tokens=16, max_seq_len=9, use_abs_pos_emb=not own, attn_layers=stack).eval()
    x, start = torch.arange(8).view(2, 4), torch.tensor([0, 2])

    def hidden(start, length):
        mask = torch.arange(length) >= start[:, None]
        return {None: {}, 'seq_start_pos': dict(seq_start_pos=start), 'mask': dict(mask=mask)}[hides]

    _, cache = net(x, return_intermediates=True, **hidden(start, 4))
    for inter in cache.attn_intermediates:
        inter.cached_kv = [t[rows] for t in inter.cached_kv]
    x, start = x[rows], start[rows]
    for length in (5, 6, 7):
        x = torch.cat((x, torch.randint(0, 16, (len(rows), 1))), dim=1)
        out, cache = net(x, cache=cache, return_intermediates=True, **hidden(start, length))
        torch.testing.assert_close(out[:, -1], net(x, **hidden(start, length))[:, -1])


@pytest.mark.parametrize('own', [{}, dict(rotary_pos_emb=True), dict(alibi_pos_bias=True)])
def test_a_sequence_shorter_than_the_cache_ends_with_the_new_token(own):
    """A client leaves out the first tokens, which only its first call saw."""
    net, front, x = Decoder(**SMALL, **own).eval(), torch.randn(2, 3, 32), torch.randn(2, 4, 32)
    whole = net(torch.cat((front, x), dim=1))
    _, cache = net(torch.cat((front, x[:, :1]), dim=1), return_hiddens=True)
    for n in (2, 3, 4):
        out, cache = net(x[:, :n], cache=cache, return_hiddens=True)
        torch.testing.assert_close(out, whole[:, n + 2 : n + 3])
    _, cache = net(torch.cat((front, x[:, :1]), dim=1), return_hiddens=True)
    for new in (dict(cache_age=3), dict(cache_age=0), dict(input_not_include_cache=True)):
        torch.testing.assert_close(net(x[:, 1:], cache=cache, **new), whole[:, 4:])


@pytest.mark.parametrize('own', [dict(rotary_pos_emb=True), dict(alibi_pos_bias=True), {}])
def test_rows_that_grow_at_their_own_pace(own):
    """A client of dynamic chunks: a step brings a token to some rows only, and it moves the real keys to the right."""
    net, lengths = Decoder(**SMALL, **own).eval(), torch.tensor([6, 3])
    x, steps = torch.randn(2, 6, 32), [(1, 1), (1, 0), (1, 1), (1, 0), (1, 1), (1, 0)]
    cache, seen, outs = None, torch.zeros(2, 0, dtype=torch.bool), ([], [])
    for step in steps:
        new, at = torch.tensor(step).bool()[:, None], seen.sum(dim=-1)
        token = x[[0, 1], at.clamp(max=5), None]
        start, seen = (~seen).sum(dim=-1), torch.cat((seen, new), dim=-1)
        given = dict(self_attn_kv_mask=seen, seq_start_pos=start, input_not_include_cache=True)
        out, cache = net(token, mask=new, cache=cache, return_hiddens=True, **given)
        for row in new.squeeze(-1).nonzero().squeeze(-1):
            outs[row].append(out[row, -1])
        order = seen.long().argsort(dim=-1, stable=True)
        seen = seen.gather(1, order)
        for inter in cache.attn_intermediates:
            inter.cached_kv = tuple(t.gather(2, order[:, None, :, None].expand_as(t)) for t in inter.cached_kv)
    for row, length in enumerate(lengths):
        torch.testing.assert_close(torch.stack(outs[row]), net(x[row : row + 1, :length])[0])


def test_a_model_is_told_later_that_calls_pass_new_tokens_only():
    """A client of self-distillation sets the attribute of a model that is given to it."""
    net = TransformerWrapper(num_tokens=16, max_seq_len=9, attn_layers=Decoder(**SMALL)).eval()
    net.input_not_include_cache = True
    x, start = torch.arange(14).view(2, 7), torch.tensor([0, 2])
    out, cache = net(x[:, :4], seq_start_pos=start, return_intermediates=True)
    more, _ = net(x[:, 4:], cache=cache, seq_start_pos=start, return_intermediates=True)
    whole = net(x, seq_start_pos=start)
    torch.testing.assert_close(out, whole[:, :4])
    torch.testing.assert_close(more, whole[:, 4:])


def test_the_token_embedding_is_exchanged_for_vectors():
    """A client of medical records puts a module of its own in the place of `token_emb`: its tokens are vectors."""
    stack = Decoder(**SMALL, rotary_pos_emb=True)
    net = TransformerWrapper(num_tokens=16, max_seq_len=9, use_abs_pos_emb=False, attn_layers=stack).eval()
    net.token_emb = torch.nn.Identity()
    x, mask = torch.randn(2, 6, 32), torch.arange(6) < torch.tensor([[6], [4]])
    logits, embeds = net(x, mask=mask, return_logits_and_embeddings=True)
    torch.testing.assert_close(embeds, stack(x, mask=mask))
    torch.testing.assert_close(logits, net.to_logits(embeds))
    _, cache = net(x[:, :5], return_intermediates=True, seq_start_pos=torch.tensor([0, 2]))
    last, _ = net(x, cache=cache, return_intermediates=True, seq_start_pos=torch.tensor([0, 2]))
    torch.testing.assert_close(last, net(x, seq_start_pos=torch.tensor([0, 2]))[:, -1:])


# what clients do to a built model: read attributes, replace modules, put in stacks of their own. Numbers are those of
# the same computation, written here once more


MODULES = dict(dim=16, depth=2, heads=2, attn_dim_head=8, verbose=False)


class Around(nn.Module):
    """A module around another, as one that computes it again in the backward pass."""

    def __init__(self, block):
        super().__init__()
        self.block = block

    def forward(self, *args, **kwargs):
        return self.block(*args, **kwargs)


class Twice(Around):
    def forward(self, *args, **kwargs):
        out = args[0] if self.block is None else self.block(*args, **kwargs)
        return (2 * out[0], *out[1:]) if isinstance(out, tuple) else 2 * out


def token_model(stack=Decoder, flags=None, **own):
    sizes = dict(num_tokens=20, max_seq_len=16, attn_layers=stack(**MODULES, **(flags or {})))
    return TransformerWrapper(**{**sizes, **own}).double().eval()


def vector_model(**own):
    stack = own.pop('attn_layers', None) or Encoder(**MODULES)
    net = ContinuousTransformerWrapper(**{**dict(dim_in=4, dim_out=4, max_seq_len=16, attn_layers=stack), **own})
    return net.double().eval()


IDS = torch.randint(1, 20, (2, 9), generator=torch.Generator().manual_seed(3))
VECTORS = torch.randn(2, 9, 16, generator=torch.Generator().manual_seed(4), dtype=torch.float64)


def exact(*pair):
    torch.testing.assert_close(*pair, rtol=1e-10, atol=1e-10)


# attributes that are read, and the pass written by a client


class Exported(Decoder):
    """A client's pass through the layers, with nothing but what a stack shows of itself."""

    def forward(self, x, mask=None, cache=None, condition=None, return_hiddens=False, **_):
        norm_inputs = {'condition': self.adaptive_mlp(condition[:, None])} if self.norm_need_condition else {}
        assert self.need_condition == bool(norm_inputs or self.post_branch_fn_needs_condition)
        turns, length = None, x.shape[1]
        if self.rotary_pos_emb is not None:
            turns = self.rotary_pos_emb(torch.arange(length)[None])
        pasts = iter(() if cache is None else cache.attn_intermediates)
        x = x if cache is None else x[:, -1:]
        x = x if self.stream_emb is None else (x[:, None] + self.stream_emb[:, None]).flatten(0, 1)
        injected = None if self.reinject_input_proj is None else self.reinject_input_proj(x)
        left, skips, reads = [], [], []
        parts = (self.layer_types, self.skip_combines, self.layers, self.layer_dropouts, self.layer_integrators)
        each = list(zip(*parts, strict=True))
        for at in self.layers_execute_order:
            kind, combine, ((before, after, outside), block, residual), rate, integrate = each[at]
            assert rate == 0
            skips.append(x)
            x = x if combine is None else combine(x, skips)
            x, skip, own = residual.prepare(x)
            reads.append(x)
            x = x if integrate is None else integrate(x, reads)
            x = x if injected is None else x + injected
            x = x if before is None else before(x, **norm_inputs)
            if kind == 'a':
                given = dict(mask=mask, attn_mask=None, rel_pos=self.rel_pos, rotary_pos_emb=turns, pos=None, mem=None)
                x, trace = block(x, **given, cache=next(pasts, None), prev_attn=None, return_intermediates=True)
                left.append(trace)
            else:
                x = block(x, deep_embed=None)
            x = residual(x if after is None else after(x, **norm_inputs), skip, **own)
            x = x if outside is None else outside(x, **norm_inputs)
        x = x if self.stream_emb is None else x.unflatten(0, (-1, self.num_residual_streams)).sum(dim=1)
        x = self.final_norm(x, **norm_inputs)
        return (x, LayerIntermediates(attn_intermediates=left, cache_length=length)) if return_hiddens else x


PASSES = {
    'plain': {}, 'rotary': dict(rotary_pos_emb=True), 'alibi': dict(alibi_pos_bias=True), 't5': dict(rel_pos_bias=True),
    'post-norm': dict(pre_norm=False), 'both': dict(pre_and_post_norm=True), 'sandwich': dict(sandwich_norm=True),
    'adaptive': dict(use_adaptive_rmsnorm=True, dim_condition=5, adaptive_condition_mlp=True),
    'streams': dict(num_residual_streams=2), 'mirrored': dict(unet_skips=True), 'mixed': dict(integrate_layers=True),
    'injected': dict(reinject_input=True), 'gated': dict(gate_residual=True),
    'order': dict(layers_execute_order=(0, 1, 0, 3)),
}  # fmt: skip


@pytest.mark.parametrize('flags', PASSES.values(), ids=PASSES)
def test_a_client_writes_the_pass_through_a_stack(flags):
    own = Exported(**MODULES, **flags).double().eval()
    ours = Decoder(**MODULES, **flags).double().eval()
    ours.load_state_dict(own.state_dict())
    given = dict(condition=VECTORS[:, 0, :5]) if 'dim_condition' in flags else {}
    out, wanted = own(VECTORS, **given), ours(VECTORS, **given)
    exact(out, wanted)
    of_own, of_ours = (
        torch.autograd.grad(t.square().sum(), [*net.parameters()], materialize_grads=True)
        for t, net in ((out, own), (wanted, ours))
    )
    exact(of_own, of_ours)
    mask = torch.arange(9) < torch.tensor([[9], [6]])
    exact(own(VECTORS, mask=mask, **given)[mask], ours(VECTORS, mask=mask, **given)[mask])


@pytest.mark.parametrize('name', ['plain', 'rotary', 'alibi', 't5'])
def test_such_a_stack_generates(name):
    """It cuts off the cached tokens itself: it is handed all of them."""
    net, own = token_model(flags=PASSES[name]), token_model(Exported, PASSES[name])
    own.load_state_dict(net.state_dict())
    wanted = AutoregressiveWrapper(net).generate(IDS[:, :3], 5, temperature=0.0)
    for cache_kv in (True, False):
        assert AutoregressiveWrapper(own).generate(IDS[:, :3], 5, temperature=0.0, cache_kv=cache_kv).equal(wanted)


def test_what_a_stack_shows_of_itself():
    plain, tied = Decoder(**MODULES), Decoder(**MODULES, weight_tie_layers=True)
    assert not (plain.need_condition or plain.norm_need_condition or plain.post_branch_fn_needs_condition)
    assert plain.layer_dropouts == (0.0,) * 4 and plain.dim_condition == 16 and plain.residual_scale is None
    assert [*plain.skip_combines] == [*plain.layer_integrators] == [None] * 4
    names = ('rel_pos', 'stream_emb', 'reinject_input_proj', 'rotary_pos_emb', 'polar_pos_emb')
    assert [getattr(plain, name) for name in names] == [None] * 5
    assert token_model().attn_pool is None and token_model().ff_deep_embed is None
    assert plain.adaptive_mlp(VECTORS) is VECTORS and Decoder(**MODULES, pre_norm=False).final_norm(VECTORS) is VECTORS
    assert tied.depth == 1 and tied.layer_dropouts == (0.0, 0.0) and tied.layers_execute_order == (0, 1, 0, 1)
    assert Decoder(**MODULES, layer_dropout=0.25).layer_dropouts == (0.25,) * 4
    behind = Decoder(**MODULES, use_adaptive_layerscale=True, dim_condition=5)
    assert behind.need_condition and behind.post_branch_fn_needs_condition and not behind.norm_need_condition
    assert behind.dim_condition == 5 and Decoder(**MODULES, scale_residual=0.5).residual_scale == 0.5
    assert not any('combines' in name or 'integrators' in name or 'mlp' in name for name in plain.state_dict())
    heads = plain.layers[0][1]
    assert heads.attn_on_attn is False and heads.to_v_gate is None and heads.qk_norm_q_scale == 1
    assert heads.attend.scale == 8**-0.5 and heads.attend.causal and heads.attend.softclamp_logits is False


def test_rates_that_are_assigned_leave_layers_out():
    stack = Decoder(**MODULES).double()
    stack(VECTORS)  # so that a short cut is known
    stack.layer_dropouts = (1.0, 0, 1.0, 1.0)
    norm, branch, residual = stack.layers[1][0][0], stack.layers[1][1], stack.layers[1][2]
    exact(stack(VECTORS), stack.final_norm(residual(branch(norm(VECTORS)), VECTORS)))
    assert not stack.can_cache_kv_in_training
    stack.eval()
    plain = Decoder(**MODULES).double().eval()
    plain.load_state_dict(stack.state_dict())
    exact(stack(VECTORS), plain(VECTORS))
    for wrong in (0.5, (0.5, 2.0), ('a',) * 4, (0.5,), (0.5, 0, 0, 2.0)):
        with pytest.raises(ValueError, match='`layer_dropouts` must '):
            stack.layer_dropouts = wrong


def test_layers_that_always_drop_out_are_left_out():
    stack = Decoder(**MODULES, layer_dropout=(1.0, 0.0, 1.0, 1.0)).double()
    norm, branch, residual = stack.layers[1][0][0], stack.layers[1][1], stack.layers[1][2]
    exact(stack(VECTORS), stack.final_norm(residual(branch(norm(VECTORS)), VECTORS)))


# layers that are plain lists of three


def listed(stack, around=Around):
    """Every layer as a plain list of its parts, the branch inside of another module."""
    return nn.ModuleList(
        nn.ModuleList([nn.ModuleList(list(layer[0])), around(layer[1]), layer[2]]) for layer in stack.layers
    )


LISTS = {name: PASSES[name] for name in ('plain', 'rotary', 'streams', 'mixed', 'gated')}
LISTS |= {
    'parallel': dict(parallel_block='shared'),
    'reversible': dict(reversible=True),
    'experts': dict(ff_moe_experts=2),
}


@pytest.mark.parametrize('flags', LISTS.values(), ids=LISTS)
@pytest.mark.parametrize('whole', [True, False])
def test_layers_are_replaced_by_plain_lists(flags, whole):
    stack = Decoder(**MODULES, **flags).double()
    before = stack(VECTORS)
    wanted = torch.autograd.grad(before.sum(), [*stack.parameters()])
    if whole:
        stack.layers = listed(stack)
    for at, one in enumerate(listed(stack, lambda block: block if whole else Around(block))):
        stack.layers[at] = one
    out = stack(VECTORS)
    exact(out, before)
    exact(torch.autograd.grad(out.sum(), [*stack.parameters()]), wanted)
    mask = torch.arange(9) < torch.tensor([[9], [6]])
    changed = VECTORS.masked_fill(~mask[..., None], 3.0)
    exact(stack(VECTORS, mask=mask)[mask], stack(changed, mask=mask)[mask])
    twice = Decoder(**MODULES, **flags).double()
    twice.load_state_dict({name.replace('1.block.', '1.'): t for name, t in stack.state_dict().items()})
    twice.layers[1] = nn.ModuleList([twice.layers[1][0], Twice(twice.layers[1][1]), twice.layers[1][2]])
    assert not torch.allclose(twice(VECTORS), before)


def test_adapters_stand_between_the_layers():
    """A client assigns lists of layers at each call, one for each task."""
    stack = Decoder(**MODULES).double().eval()
    extra = nn.ModuleList(
        [nn.ModuleList([nn.LayerNorm(16), None, None]), Around(nn.Linear(16, 16)), Residual(16)]
    ).double()
    first, others = stack.layers[0], [*stack.layers][1:]
    for _ in range(2):
        plain = stack(VECTORS)
        stack.layers, stack.layer_types = nn.ModuleList([first, extra, *others]), ('a', 'f', 'f', 'a', 'f')
        stack.layers_execute_order = (0, 1, 2, 3, 4)
        x = VECTORS
        for (before, _, _), branch, residual in stack.layers:
            x = residual(branch(before(x)), x)
        exact(stack(VECTORS), stack.final_norm(x))
        _, cache = stack(VECTORS[:, :5], return_hiddens=True)
        exact(stack(VECTORS, cache=cache), stack(VECTORS)[:, 5:])
        assert [inter.layer_index for inter in cache.attn_intermediates] == [0, 3]
        stack.layers, stack.layer_types = nn.ModuleList([first, *others]), ('a', 'f', 'a', 'f')
        stack.layers_execute_order = (0, 1, 2, 3)
        exact(stack(VECTORS), plain)


class Told(Around):
    """Attention that names the keywords which it knows."""

    def forward(self, x, mask=None, rotary_pos_emb=None, return_intermediates=False):
        return self.block(x, mask=mask, rotary_pos_emb=rotary_pos_emb, return_intermediates=return_intermediates)


def test_a_branch_of_a_client_is_told_what_it_names():
    stack, mask = Decoder(**MODULES, **PASSES['rotary']).double().eval(), torch.arange(9) < torch.tensor([[9], [6]])
    hidden, kept = stack(VECTORS, mask=mask)[mask], stack(VECTORS, return_hiddens=True)[0]
    norms, block, residual = stack.layers[0]
    stack.layers[0] = nn.ModuleList([norms, Told(block), residual])
    exact(stack(VECTORS, mask=mask)[mask], hidden)
    exact(stack(VECTORS, return_hiddens=True)[0], kept)


def test_lists_that_are_no_layers_are_refused():
    stack = Decoder(**MODULES)
    norms, block, residual = stack.layers[0]
    for wrong in (
        [norms, block],
        [block, norms, residual],
        [nn.ModuleList([None]), block, residual],
        [norms, None, residual],
    ):
        stack.layers[0] = nn.ModuleList(wrong)
        with pytest.raises(ValueError, match=r'`layers\[0\]` must be \(norms, branch, residual\)'):
            stack(VECTORS.float())
    stack.layers = stack.layers[1:]
    with pytest.raises(ValueError, match='`layers_execute_order` runs layer 3, but there are 3 `layers`'):
        stack(VECTORS.float())
    stack = Decoder(**MODULES)
    stack.skip_combines[2] = nn.Linear(16, 16)
    with pytest.raises(
        ValueError, match='`skip_combines` must be None, since the stack was built without `unet_skips`'
    ):
        stack(VECTORS.float())


# every module can be called and replaced, and what is assigned is what runs


MODELS = {
    'tokens': (token_model, IDS, {}),
    'rotary': (functools.partial(token_model, flags=PASSES['rotary']), IDS, {}),
    'projected': (functools.partial(token_model, emb_dim=8, post_emb_norm=True), IDS, {}),
    'vectors': (vector_model, VECTORS[..., :4], {}),
    'memories': (functools.partial(vector_model, num_memory_tokens=2, emb_dropout=0.5), VECTORS[..., :4], {}),
    'numbers': (
        lambda: XValTransformerWrapper(
            num_tokens=20, numerical_token_id=3, max_seq_len=16, attn_layers=Decoder(**MODULES)
        ).double().eval(),
        IDS, dict(x_num=VECTORS[..., 0]),
    ),
    'streams': (
        lambda: MultiInputTransformerWrapper(
            num_tokens=dict(a=20), max_seq_len=16, attn_layers=Decoder(**MODULES)
        ).double().eval(),
        dict(a=IDS), {},
    ),
    'images': (
        lambda: ViTransformerWrapper(
            image_size=8, patch_size=4, num_classes=3, attn_layers=Encoder(**MODULES)
        ).double().eval(),
        VECTORS.flatten()[: 3 * 64].view(1, 3, 8, 8), {},
    ),
}  # fmt: skip
MODULES_OF_ALL = {
    'tokens': 'token_emb pos_emb post_emb_norm emb_dropout project_emb attn_layers to_logits',
    'rotary': 'token_emb pos_emb post_emb_norm emb_dropout project_emb attn_layers to_logits',
    'projected': 'token_emb pos_emb post_emb_norm emb_dropout project_emb attn_layers to_logits',
    'vectors': 'pos_emb post_emb_norm emb_dropout attn_layers project_in project_out',
    'memories': 'pos_emb post_emb_norm emb_dropout attn_layers project_in project_out',
    'numbers': 'token_emb pos_emb emb_dropout attn_layers to_logits to_numerical_output',
    'streams': 'pos_emb post_emb_norm emb_dropout project_emb attn_layers',
    'images': 'patch_to_embedding post_emb_norm dropout attn_layers mlp_head',
}


def tensors(out):
    return [t for t in tree_leaves(out) if torch.is_tensor(t)]


@pytest.mark.parametrize('kind', MODELS)
def test_what_is_assigned_to_a_model_is_what_runs(kind):
    build, x, inputs = MODELS[kind]
    net = build()
    names, stored = MODULES_OF_ALL[kind].split(), [*net.state_dict()]
    before = tensors(net(x, **inputs))
    heard = []
    for name in names:
        own = getattr(net, name)
        if isinstance(own, nn.Module):
            handle = own.register_forward_hook(
                lambda module, given, out, name=name: heard.append((name, given[0], out))
            )
            net(x, **inputs)
            handle.remove()
            [(_, given, out)] = [one for one in heard if one[0] == name]
            exact(tensors(own(given)), tensors(out)[: len(tensors(own(given)))])
        setattr(net, name, Around(own) if isinstance(own, nn.Module) else own)
        exact(tensors(net(x, **inputs)), before)
        setattr(net, name, Twice(own) if isinstance(own, nn.Module) else Positions(net.emb_dim))
        after = tensors(net(x, **inputs))
        assert any(not torch.allclose(a, b) for a, b in zip(after, before, strict=True)), name
        delattr(net, name)
        setattr(net, name, own)
        exact(tensors(net(x, **inputs)), before)
    assert not [name for name in stored if name.split('.')[0] in ('emb_dropout', 'dropout')]


class Positions(nn.Module):
    """Waves that know nothing of an offset."""

    def __init__(self, width):
        super().__init__()
        self.width = width

    def forward(self, x, pos=None, **_):
        pos = torch.arange(x.shape[-1] if x.ndim == 2 else x.shape[1]).view(1, -1, 1) if pos is None else pos
        return (pos / torch.arange(1, self.width + 1)).cos()


class WithPast(nn.Module):
    """Embeddings that hold the token before."""

    def __init__(self, emb):
        super().__init__()
        self.emb = emb

    def forward(self, ids):
        own = self.emb(ids)
        return own + F.pad(own, (0, 0, 1, 0))[:, :-1]


REPLACED = {
    'pos_emb': lambda net: Positions(16),
    'token_emb': lambda net: WithPast(net.token_emb),
    'post_emb_norm': lambda net: Twice(None),
    'emb_dropout': lambda net: nn.Linear(16, 16).double(),
    'attn_layers': lambda net: Around(net.attn_layers),
}


@pytest.mark.parametrize('name', REPLACED)
def test_generation_runs_what_is_assigned(name):
    """Modules of clients need not know of a cache."""
    net = token_model()
    plain = AutoregressiveWrapper(net).generate(IDS[:, :3], 8, temperature=0.0)
    setattr(net, name, REPLACED[name](net))
    tokens = IDS[:, :3]
    for _ in range(8):
        tokens = torch.cat((tokens, net(tokens)[:, -1:].argmax(dim=-1)), dim=1)
    for cache_kv in (True, False):
        made = AutoregressiveWrapper(net).generate(IDS[:, :3], 8, temperature=0.0, cache_kv=cache_kv)
        assert made.equal(tokens[:, 3:])
    assert name == 'attn_layers' or not made.equal(plain)
    _, cache = net(tokens[:, :4], return_intermediates=True)
    exact(net(tokens[:, :7], cache=cache), net(tokens[:, :7])[:, 4:])


def test_a_client_writes_the_pass_through_a_model():
    class Probe(TransformerWrapper):
        def forward(self, x, pos=None, **inputs):
            x = self.token_emb(x) + self.pos_emb(x, pos=pos, seq_start_pos=None, offset=0)
            x = self.project_emb(self.emb_dropout(self.post_emb_norm(x)))
            return self.to_logits(self.attn_layers(x, **inputs))

    for own in ({}, dict(use_abs_pos_emb=False), dict(post_emb_norm=True, emb_dim=8), dict(tie_embedding=True)):
        net = token_model(**own)
        probe = Probe(num_tokens=20, max_seq_len=16, attn_layers=Decoder(**MODULES), **own).double().eval()
        probe.load_state_dict(net.state_dict())
        exact(probe(IDS), net(IDS))
    assert token_model(use_abs_pos_emb=False).pos_emb(IDS) == 0 == vector_model(max_seq_len=0).pos_emb(VECTORS)


def test_heads_are_seen_and_changed_by_modules():
    net = token_model()
    attn, seen = net.attn_layers.layers[0][1], []
    before, modules = net(IDS), len([*net.modules()])
    attn.merge_heads.register_forward_hook(lambda module, given, out: seen.append((given[0], out)))
    exact(net(IDS), before)
    heads, merged = seen[0]
    exact(merged, heads.transpose(1, 2).flatten(2))
    assert heads.shape == (2, 2, 9, 8) and len([*net.modules()]) == modules + 1
    attn.split_v_heads = Twice(attn.split_v_heads)
    assert not torch.allclose(net(IDS), before)


# what a program that is exported with a cache passes


@pytest.mark.parametrize('offset', [torch.tensor(2), torch.tensor([2])])
def test_an_offset_is_a_tensor(offset):
    for table in (AbsolutePositionalEmbedding(16, 20), ScaledSinusoidalEmbedding(16)):
        exact(table(IDS, offset=offset), table(IDS, offset=2))
        for wrong in (torch.tensor([1, 2]), torch.tensor(1.0), 'two'):
            with pytest.raises(TypeError, match=r'`offset` must be an integer, or a tensor of one, got .*'):
                table(IDS, offset=wrong)
    with pytest.raises(ValueError, match='got 27'):
        AbsolutePositionalEmbedding(16, 20)(IDS, offset=torch.tensor([18]))


@pytest.mark.parametrize('flags', [{}, *(PASSES[name] for name in ('rotary', 'alibi', 't5'))])
@pytest.mark.parametrize('shape', [(), (1,)])
def test_the_length_of_a_cache_is_a_tensor(flags, shape):
    stack = Decoder(**MODULES, **flags).double().eval()
    whole = stack(VECTORS)
    _, cache = stack(VECTORS[:, :5], return_hiddens=True)
    rebuilt = LayerIntermediates(
        attn_intermediates=[Intermediates(cached_kv=i.cached_kv) for i in cache.attn_intermediates]
    )
    for own in (cache, rebuilt):
        own.cache_length = torch.full(shape, 5)
        out, after = stack(VECTORS[:, 5:6], cache=own, input_not_include_cache=True, return_hiddens=True)
        exact(out, whole[:, 5:6])
        assert int(after.cache_length) == 6 and after.cache_length.shape == shape
    exact(stack(VECTORS, seq_pos_offset=torch.full(shape, 3)), stack(VECTORS, seq_pos_offset=3))


@pytest.mark.costly
def test_a_step_with_its_length_as_an_input_is_exported():
    class Step(nn.Module):
        def __init__(self, net):
            super().__init__()
            self.net = net

        def forward(self, ids, length, mask, *kept):
            pairs = zip(kept[::2], kept[1::2], strict=True)
            cache = LayerIntermediates(
                attn_intermediates=[Intermediates(cached_kv=pair) for pair in pairs], cache_length=length
            )
            return self.net(ids, cache=cache, mask=mask, input_not_include_cache=True)

    net = token_model()
    with torch.no_grad():
        _, cache = net(IDS[:1, :5], return_intermediates=True)
    kept = [t for inter in cache.attn_intermediates for t in inter.cached_kv]
    given = (IDS[:1, 5:6], torch.tensor([5]), torch.ones(1, 1, dtype=torch.bool), *kept)
    program = torch.export.export(Step(net), given)
    exact(program.module()(*given), net(IDS[:1, :6])[:, 5:])


@pytest.mark.parametrize('flags', [{}, *(PASSES[name] for name in ('rotary', 'alibi')), dict(attn_num_mem_kv=1)])
def test_a_mask_of_the_new_tokens_beside_a_cache(flags):
    net = token_model(flags=flags)
    stack, whole = net.attn_layers, net(IDS[:, :7])
    _, cache = net(IDS[:, :5], return_intermediates=True)
    for rows in (1, 2):
        real = torch.ones(rows, 2, dtype=torch.bool)
        exact(net(IDS[:, :7], cache=cache, mask=real), whole[:, 5:])
        exact(net(IDS[:, 5:7], cache=cache, mask=real, input_not_include_cache=True), whole[:, 5:])
        _, of_stack = stack(VECTORS[:, :5], return_hiddens=True)
        exact(stack(VECTORS[:, :7], cache=of_stack, mask=real), stack(VECTORS[:, :7])[:, 5:])
    attn = stack.layers[0][1]
    _, past = attn(VECTORS[:, :5], return_intermediates=True)
    exact(attn(VECTORS[:, 5:7], cache=past, mask=torch.ones(2, 2).bool()), attn(VECTORS[:, :7])[:, 5:])
    hides = torch.tensor([[True, True], [False, True]])
    with pytest.raises(ValueError, match=r'`mask` must '):
        net(IDS[:, :7], cache=cache, mask=hides)


# tokens of several codebooks


class Codebooks(nn.Module):
    def __init__(self, axis):
        super().__init__()
        self.each, self.axis = nn.ModuleList(nn.Embedding(20, 16) for _ in range(4)), axis

    def forward(self, ids):
        return sum(emb(own) for emb, own in zip(self.each, ids.unbind(self.axis), strict=True))


@pytest.mark.parametrize('axis', [1, 2])
@pytest.mark.parametrize('waves', [True, False])
def test_tokens_are_of_several_codebooks(axis, waves):
    """The model is that of vectors which the embeddings of all codes add up to."""
    net = token_model(flags=dict(cross_attend=True))
    net.token_emb = Codebooks(axis).double()
    if waves:
        net.pos_emb = Positions(16) if axis == 1 else Around(net.pos_emb)
    codes = torch.randint(0, 20, (2, 4, 6) if axis == 1 else (2, 6, 4))
    mask, context = torch.arange(6) < torch.tensor([[6], [4]]), VECTORS[:, :3]
    embeds, vectors = net.token_emb(codes), token_model(flags=dict(cross_attend=True), token_emb=nn.Identity())
    vectors.load_state_dict({n: t for n, t in net.state_dict().items() if 'token_emb' not in n}, strict=False)
    vectors.pos_emb = net.pos_emb if not waves or axis == 2 else Positions(16)
    wanted = functools.partial(vectors, embeds, context=context)
    run = functools.partial(net, codes, context=context)
    if waves and axis == 1:
        run, wanted = (functools.partial(one, pos=torch.arange(6).view(1, 6, 1)) for one in (run, wanted))
        exact(
            run(pos=torch.arange(6).view(1, 6, 1) * 2),
            vectors(embeds, context=context, pos=torch.arange(6).view(1, 6, 1) * 2),
        )
    for given in ({}, dict(mask=mask), dict(sum_embeds=VECTORS[:, :6]), dict(prepend_embeds=VECTORS[:, :2]),
                  dict(return_embeddings=True), dict(mems=[VECTORS[:, :2]] * 2)):  # fmt: skip
        exact(run(**given), wanted(**given))
    out, cache = net(codes.narrow(3 - axis, 0, 4), context=context, return_intermediates=True)
    exact(out, run()[:, :4])
    exact(run(cache=cache), run()[:, 4:])
    with pytest.raises(ValueError, match=r'`mask` must '):
        run(mask=mask[:, :5])


# a stack of one's own


class Mixing(nn.Module):
    """A stack of a client's, which keeps to the past."""

    def __init__(self, **own):
        super().__init__()
        self.mix, self.dim, self.given = nn.Linear(16, 16), 16, []
        for name, value in own.items():
            setattr(self, name, value)

    def forward(self, x, return_hiddens=False, **kwargs):
        self.given.append(kwargs)
        y = self.mix(x).cumsum(dim=1)
        left = LayerIntermediates(hiddens=[x], last_hidden=y, layer_hiddens=[x], attn_intermediates=[])
        return (y, left) if return_hiddens else y


class Bare(nn.Module):
    def __init__(self):
        super().__init__()
        self.mix, self.dim = nn.Linear(16, 16), 16

    def forward(self, x):
        return self.mix(x).cumsum(dim=1)


@pytest.mark.parametrize('kind', ['tokens', 'vectors', 'numbers', 'streams', 'images'])
@pytest.mark.parametrize('stack', [Mixing, Bare])
def test_a_stack_of_a_clients_own(kind, stack):
    build, x, inputs = MODELS[kind]
    net, own = build(), stack().double()
    net.attn_layers.forward = lambda x, return_hiddens=False, **_: (
        (own(x), LayerIntermediates()) if return_hiddens else own(x)
    )
    wanted = tensors(net(x, **inputs))
    del net.attn_layers.forward
    net.attn_layers = own
    exact(tensors(net(x, **inputs)), wanted)
    if kind != 'images':
        out, left = net(x, return_intermediates=True, **inputs)
        exact(tensors(out), wanted)
        assert left.attn_intermediates == [] and len(left.hiddens) == (stack is Mixing)


def test_a_stack_of_a_clients_own_is_trained_and_generates():
    own = Mixing(causal=True, disable_abs_pos_emb=False, can_cache_kv=True)
    net = TransformerWrapper(num_tokens=20, max_seq_len=16, attn_layers=own).double().eval()
    wrapper = AutoregressiveWrapper(net)
    exact(wrapper(IDS), F.cross_entropy(net(IDS[:, :-1]).transpose(1, 2), IDS[:, 1:]))
    tokens = IDS[:, :3]
    for _ in range(4):
        tokens = torch.cat((tokens, net(tokens)[:, -1:].argmax(dim=-1)), dim=1)
    assert wrapper.generate(IDS[:, :3], 4, temperature=0.0).equal(tokens[:, 3:])
    own.given.clear()
    net(IDS, mask=IDS > 3, context=VECTORS, anything=1)
    assert own.given[0]['mask'].equal(IDS > 3) and own.given[0]['context'] is VECTORS and own.given[0]['anything'] == 1
    steps = ContinuousAutoregressiveWrapper(vector_model(attn_layers=Mixing(causal=True)))
    assert steps.generate(VECTORS[..., :4], 3).shape == (2, 3, 4) and steps(VECTORS[..., :4]).isfinite()


def test_what_a_stack_of_a_clients_own_cannot_do_is_refused_by_name():
    build = functools.partial(TransformerWrapper, num_tokens=20, max_seq_len=16)
    with pytest.raises(ValueError, match='`max_mem_len` cannot be combined with Mixing, a stack of your own'):
        build(attn_layers=Mixing(), max_mem_len=2)
    net = build(attn_layers=Mixing(causal=True)).double()
    with pytest.raises(ValueError, match='`mems` cannot be combined with Mixing'):
        net(IDS, mems=[VECTORS])
    with pytest.raises(ValueError, match='`return_mems` cannot be combined with Mixing'):
        net(IDS, return_mems=True)
    _, cache = token_model()(IDS[:, :3], return_intermediates=True)
    with pytest.raises(ValueError, match='`cache` cannot be combined with Mixing'):
        net(IDS, cache=cache)
    with pytest.raises(ValueError, match='`intermediate_layer_loss` cannot be combined with Mixing'):
        AutoregressiveWrapper(net, intermediate_layer_loss='linear')
    with pytest.raises(ValueError, match='`attn_layers` is Mixing, a stack of your own, which has no `norm_before`'):
        build(attn_layers=Mixing(), looped=True)
    with pytest.raises(ValueError, match=r'`attn_layers` must be an instance of AttentionLayers, or a module'):
        build(attn_layers=nn.Linear(16, 16))
    with pytest.raises(TypeError, match='unexpected input `context`'):
        build(attn_layers=Bare()).double()(IDS, context=VECTORS)
    text = Around(Bare())
    text.forward, text.dim = lambda x, **_: (text.block(x), 'text'), 16
    with pytest.raises(TypeError, match="`attn_layers` gave 'text' beside its output, it must be LayerIntermediates"):
        build(attn_layers=text).double()(IDS)
    waves = dict(dim_in=4, dim_out=16, max_seq_len=16, conv_stem=[(16, 3, 1, 1)])
    assert ContinuousTransformerWrapper(attn_layers=Mixing(), **waves)(VECTORS[..., :4].float()).shape == (2, 9, 16)
    with pytest.raises(ValueError, match='`conv_stem` needs a stack in which tokens see later ones'):
        ContinuousTransformerWrapper(attn_layers=Mixing(causal=True), **waves)


def test_a_module_around_a_stack_is_that_stack():
    for flags in (PASSES['rotary'], dict(cross_attend=True)):
        net, given = token_model(flags=flags), dict(context=VECTORS[:, :3]) if 'cross_attend' in flags else {}
        out, stack = net(IDS, **given), net.attn_layers
        around = TransformerWrapper(num_tokens=20, max_seq_len=16, attn_layers=Around(stack)).double().eval()
        weights = {name.replace('attn_layers.', 'attn_layers.block.'): t for name, t in net.state_dict().items()}
        around.load_state_dict(weights)
        exact(around(IDS, **given), out)
        assert around.can_cache_kv and around.has_absolute_positions == net.has_absolute_positions
        _, cache = around(IDS[:, :5], return_intermediates=True, **given)
        exact(around(IDS, cache=cache, **given), out[:, 5:])
    around.can_cache_kv = False
    assert around.can_cache_kv is False


# what is assigned runs, or is refused


def test_a_wrapped_stack_is_read_as_it_is():
    """Its patterns know of memory tokens, and where it is read from, as without the module around it."""
    for flags in (dict(attn_sparse_pattern=BlockLocal(4)), dict(attn_sparse_pattern=Global(1))):
        net = token_model(Encoder, flags=flags, num_memory_tokens=2)
        before = net(IDS)
        net.attn_layers = Around(net.attn_layers)
        exact(net(IDS), before)
    with pytest.raises(ValueError, match="`token='first'` of `pooler` reads tokens in front"):
        around = Around(Decoder(**MODULES))
        TransformerWrapper(num_tokens=20, max_seq_len=16, attn_layers=around, pooler=dict(token='first'))


def test_a_stack_of_a_clients_own_gives_no_maps():
    net = TransformerWrapper(num_tokens=20, max_seq_len=16, attn_layers=Mixing(causal=True)).double()
    for asked in ('return_attn', 'return_attn_z_loss'):
        with pytest.raises(ValueError, match=f'`{asked}` cannot be combined with Mixing'):
            net(IDS, **{asked: True})
    bare = Bare()
    bare.forward = types.MethodType(lambda own, x: type(own).forward(own, x), bare)
    bound = TransformerWrapper(num_tokens=20, max_seq_len=16, attn_layers=bare).double()
    assert bound(IDS).shape == (2, 9, 20)


def test_assignments_that_nothing_reads_are_refused():
    stack = Decoder(**MODULES).double()
    stack.rotary_pos_emb = nn.Identity()
    with pytest.raises(ValueError, match='`rotary_pos_emb` must be None, since'):
        stack(VECTORS)
    stack = Encoder(**MODULES, weight_tie_layers=True, act_halting=True)
    with pytest.raises(ValueError, match='`layer_dropouts` cannot be combined with `act_halting`'):
        stack.layer_dropouts = [0.5] * 2
    with pytest.raises(ValueError, match=r'`layer_dropouts` must be 2 numbers from 0 to 1.*got .*'):
        stack.layer_dropouts = [0.5] * 3
    stack = Decoder(**MODULES).double()
    stack.layers.insert(0, stack.layers[1])
    with pytest.raises(ValueError, match='there are 5 `layers` and 4 `layer_types`'):
        stack(VECTORS)
    attn = Attention(16, heads=2, dim_head=8)
    with pytest.raises(TypeError, match=r'`split_q_heads` must be a module, got .*'):
        attn.split_q_heads = torch.clone
    with pytest.raises(AttributeError, match=r'`attend.selective` cannot be assigned'):
        attn.attend.selective = True


def test_what_an_operator_is_told_its_layer_does():
    attn, x = Attention(16, heads=2, dim_head=8).double(), VECTORS
    for name, value in (('causal', True), ('scale', 0.1), ('flash', False)):
        other = copy.deepcopy(attn)
        setattr(other.attend, name, value)
        assert getattr(other, {'scale': 'logit_scale'}.get(name, name)) == getattr(other.attend, name) == value
        assert torch.allclose(other(x), attn(x)) == (name == 'flash')
    narrow = Attention(16, heads=2, dim_head=8, collab_heads=True, collab_compression=0.5).double()
    before = narrow(x)
    assert isinstance(narrow.split_q_heads, nn.Module) and isinstance(narrow.split_k_heads, nn.Module)
    exact(narrow(x), before)


def test_a_branch_of_a_client_behind_shifted_tokens():
    class Plain(nn.Module):
        def forward(self, x, mask=None):
            return x * 2

    stack = Decoder(**MODULES, shift_tokens=1).double()
    stack.layers[0][1].fn = Plain()
    assert stack(VECTORS).shape == VECTORS.shape


# a forward of a user's around a model


class Segments(TransformerWrapper):
    """Counts tokens from the beginning."""

    def __init__(self, **options):
        super().__init__(**options)
        self.segment = nn.Embedding(16, 16)

    def forward(self, x, **inputs):
        return super().forward(x, sum_embeds=self.segment(torch.arange(x.shape[1]) // 2), **inputs)


class Periods(TransformerWrapper):
    def forward(self, x, **inputs):
        return super().forward(x, pos=torch.arange(x.shape[1]) % 4, **inputs)


class Outside(nn.Module):
    """Hands on what it does not have."""

    def __init__(self, net):
        super().__init__()
        self.net, self.counted = net, nn.Embedding(16, 16)

    def __getattr__(self, name):
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(self.net, name)

    def forward(self, x, **inputs):
        return self.net(x, sum_embeds=self.counted(x.cumsum(dim=-1) % 16), **inputs)


def patched(**options):
    net, table = TransformerWrapper(**options), torch.randn(16, 16, dtype=torch.float64)
    written = net.forward
    net.forward = lambda x, **inputs: written(x, sum_embeds=table[x.cumsum(dim=-1) % 16], **inputs)
    return net


@pytest.mark.parametrize('build', [Segments, Periods, lambda **o: Outside(TransformerWrapper(**o)), patched])
def test_a_forward_around_a_model_is_given_all_tokens(build):
    net = build(num_tokens=20, max_seq_len=16, attn_layers=Decoder(**MODULES, rotary_pos_emb=True))
    wrapper = randomised(AutoregressiveWrapper(net))
    prompts, given = IDS[:, :4], []
    wanted = wrapper.generate(prompts, 8, temperature=0.0, cache_kv=False)
    handle = net.register_forward_pre_hook(lambda _, inputs: given.append(inputs[0].shape[1]))
    assert wrapper.generate(prompts, 8, temperature=0.0).equal(wanted)
    assert given == list(range(4, 12))
    handle.remove()
    assert torch.stack([*wrapper.stream(prompts, 8, temperature=0.0)], dim=-1).equal(wanted)
    assert wrapper.speculative(prompts, 8, temperature=0.0).equal(wanted)
    with pytest.raises(ValueError, match='code of others that may need all tokens'):
        PagedEngine(wrapper, 16)


@pytest.mark.costly
def test_a_net_that_torch_compiles_is_given_new_tokens():
    net = TransformerWrapper(num_tokens=20, max_seq_len=16, attn_layers=Decoder(**MODULES)).eval()
    graph, given = torch.compile(net, backend='eager'), []
    net.register_forward_pre_hook(lambda _, inputs: given.append(inputs[0].shape[1]))
    AutoregressiveWrapper(graph).generate(IDS[:, :4], 3, temperature=0.0)
    assert given[1:] == [1] * (len(given) - 1)


def test_a_loss_is_one_graph_with_every_torch():
    wrapper = AutoregressiveWrapper(TransformerWrapper(num_tokens=20, max_seq_len=16, attn_layers=Decoder(**MODULES)))
    graph = torch.compile(wrapper.double(), backend='eager', fullgraph=True)
    exact(graph(IDS), wrapper(IDS))


@pytest.mark.parametrize('number', [0.5, torch.tensor(0.5)])
def test_a_number_is_added_to_all_embeddings(number):
    net = TransformerWrapper(num_tokens=20, max_seq_len=16, attn_layers=Decoder(**MODULES)).eval()
    assert net(IDS, sum_embeds=number).equal(net(IDS, sum_embeds=torch.full((16,), 0.5)))


def test_projections_of_another_width_are_read():
    attn, ff = Attention(16, heads=2, dim_head=8), FeedForward(16)
    attn.to_q, attn.to_k, attn.to_v = (nn.Linear(24, 16, bias=False) for _ in 'qkv')
    wide = torch.randn(2, 5, 24)
    heads = [project(wide).view(2, 5, 2, 8).transpose(1, 2) for project in (attn.to_q, attn.to_k, attn.to_v)]
    out = F.scaled_dot_product_attention(*heads).transpose(1, 2).flatten(2)
    torch.testing.assert_close(attn(wide), attn.to_out(out))
    ff.ff[0][0] = nn.Linear(20, 64)
    exact(ff(wide[..., :20]), ff.ff(wide[..., :20]))
    stack = Decoder(**MODULES, cross_attend=True)
    for kind, layer in zip(stack.layer_types, stack.layers, strict=True):
        if kind == 'c':
            layer[1].to_k, layer[1].to_v = (nn.Linear(6, 16, bias=False) for _ in 'kv')
    assert stack(VECTORS.float(), context=torch.randn(2, 5, 6)).shape == VECTORS.shape
    for module in (attn, ff):
        with pytest.raises(ValueError, match=r'`x` (got|must have) shape'):
            module(torch.randn(2, 5, 7))


# attention maps and dropout inside of the operator: explanations of models read and change them


def layer_and_parts(**flags):
    """An attention layer in float64, with its queries, keys and values for VECTORS, computed here once more."""
    torch.manual_seed(5)
    attn = Attention(16, heads=2, dim_head=8, **flags).double().eval()
    q, k, v = (proj(VECTORS).unflatten(-1, (2, 8)).transpose(1, 2) for proj in (attn.to_q, attn.to_k, attn.to_v))
    return attn, q, k, v


def output_of(attn, maps, v):
    return attn.to_out((maps @ v).transpose(1, 2).flatten(2))


def operators(net):
    return [module for module in net.modules() if isinstance(module, Attend)]


@pytest.mark.parametrize('flags', [{}, dict(causal=True), dict(kv_heads=1), dict(softclamp_logits=True)], ids=str)
def test_gradients_reach_the_maps_that_are_asked_for(flags):
    attn, _, _, v = layer_and_parts(**{name: value for name, value in flags.items() if name != 'kv_heads'})
    if 'kv_heads' in flags:
        attn = Attention(16, heads=2, dim_head=8, kv_heads=1).double()
        v = attn.to_v(VECTORS).unsqueeze(1).expand(-1, 2, -1, -1)
    out, left = attn(VECTORS, return_intermediates=True)
    probe = torch.randn_like(out)
    grad, of_logits = torch.autograd.grad((out * probe).sum(), [left.post_softmax_attn, left.pre_softmax_attn])
    wanted = (probe @ attn.to_out.weight).unflatten(-1, (2, 8)).transpose(1, 2) @ v.transpose(-1, -2)
    exact(grad, wanted)
    maps = left.post_softmax_attn
    exact(of_logits, maps * (wanted - (maps * wanted).sum(dim=-1, keepdim=True)))
    exact(attn(VECTORS), out)


@pytest.mark.parametrize('asked', ['return_intermediates', 'return_attn'])
def test_gradients_reach_the_maps_of_a_model(asked):
    net, seen = token_model(Encoder, dict(rotary_pos_emb=True)), []
    out, left = net(IDS, **{asked: True})
    maps = left if asked == 'return_attn' else [own.post_softmax_attn for own in left.attn_intermediates]
    for one in maps:
        one.retain_grad()
        one.register_hook(seen.append)
    out[0, 0, 3].backward()
    assert len(seen) == 2 and all(one.grad.abs().sum() > 0 for one in maps)
    exact(net(IDS), out)


def test_maps_that_nobody_gets_cost_no_formula(monkeypatch):
    """Memories alone, and what wrappers ask for themselves; without gradients none either."""
    ran = []
    monkeypatch.setattr(dense, 'attention_maps', lambda *args: ran.append(args) or MAPS(*args))
    net = token_model(max_mem_len=4)
    net(IDS, return_mems=True)
    XLAutoregressiveWrapper(net)(IDS)
    with torch.no_grad():
        net(IDS, return_intermediates=True)
    net(IDS)
    assert not ran
    net(IDS, return_intermediates=True)
    assert len(ran) == 2


def test_a_layer_that_is_computed_again_keeps_its_kernel():
    net = token_model(max_mem_len=4)
    inner = net.attn_layers.layers[0][1]
    whole = inner.forward
    inner.forward = lambda *args, **kwargs: torch.utils.checkpoint.checkpoint(
        whole, *args, use_reentrant=False, **kwargs
    )
    out, _ = net(IDS, return_mems=True)
    out.square().sum().backward()
    assert net.token_emb.emb.weight.grad.abs().sum() > 0


@pytest.mark.parametrize('where', ['class', 'instance'])
def test_a_forward_around_that_of_the_operator_gets_maps(where, monkeypatch):
    net, got, old = token_model(Encoder), [], Attend.forward

    def forward(self, *args, **kwargs):
        out, left = old(self, *args, **kwargs)
        got.append(left.post_softmax_attn)
        return out, left

    _, wanted = net(IDS, return_attn=True)
    if where == 'class':
        monkeypatch.setattr(Attend, 'forward', forward)
    else:
        for own in operators(net):
            own.forward = types.MethodType(forward, own)
    out = net(IDS)
    assert len(got) == 2 and all(map(torch.equal, got, wanted))
    assert all(grad.abs().sum() > 0 for grad in torch.autograd.grad(out[0, 0, 3], got))


@pytest.mark.parametrize('flags', [{}, dict(rotary_pos_emb=True), dict(attn_dropout=0.5)], ids=str)
def test_the_dropout_of_maps_is_hooked(flags):
    net, seen = token_model(flags=flags), []
    before, wanted = net(IDS, return_attn=True)
    handles = [own.attn_dropout.register_forward_hook(lambda _, args, out: seen.append(out)) for own in operators(net)]
    exact(net(IDS), before)
    assert len(seen) == 2
    exact(seen, wanted)
    for handle in handles:
        handle.remove()
    operators(net)[0].attn_dropout.register_forward_hook(lambda _, args, out: 0 * out)
    silent = copy.deepcopy(net)
    silent.attn_layers.layers[0][1].to_out.weight.data.zero_()
    exact(net(IDS), silent(IDS))


def test_the_dropout_of_maps_is_replaced():
    class First(nn.Module):
        def forward(self, maps):
            return F.one_hot(torch.zeros_like(maps[..., 0], dtype=torch.long), maps.shape[-1]).to(maps)

    for flags in ({}, dict(dropout=0.3), dict(flash=False)):
        attn, _, _, v = layer_and_parts(**flags)
        attn.attend.attn_dropout = First()
        exact(attn(VECTORS), attn.to_out(v[:, :, :1].transpose(1, 2).flatten(2)).expand(-1, 9, -1))
        attn.attend.attn_dropout = nn.Identity()
        exact(attn.train()(VECTORS), layer_and_parts()[0](VECTORS))


@pytest.mark.parametrize('flags', [{}, dict(attn_flash=False), dict(rotary_pos_emb=True)], ids=str)
def test_every_dropout_is_switched_by_its_module(flags):
    rates = dict(attn_dropout=0.5, ff_dropout=0.5, layer_dropout=0.0)
    net = token_model(flags={**flags, **rates}, emb_dropout=0.5)
    still = net(IDS)
    operators(net)[1].attn_dropout.train()  # in a model that evaluates
    assert not torch.allclose(net(IDS), still)
    for module in net.modules():
        if isinstance(module, nn.Dropout):
            module.train()
    assert not torch.allclose(net(IDS), still)
    net.train()
    for module in net.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    exact(net(IDS), still)
    bare = token_model(flags=flags)
    bare.load_state_dict(net.state_dict())
    plain = bare.train()(IDS)
    operators(bare)[0].attn_dropout.p = 1.0  # of a layer that was built without
    assert operators(bare)[0].dropout == bare.attn_layers.layers[0][1].dropout == 1.0
    assert not torch.allclose(bare(IDS), plain)
    bare.attn_layers.layers[0][1].to_out.weight.data.zero_()
    silent = bare(IDS)
    operators(bare)[0].dropout = 0.0
    exact(bare(IDS), silent)


@pytest.mark.parametrize('flags', [{}, dict(causal=True), dict(dropout=0.5), dict(sigmoid=True)], ids=str)
def test_a_function_in_the_place_of_softmax(flags):
    attn, q, k, v = layer_and_parts(**flags)
    before, old = attn(VECTORS), attn.attend.attn_fn
    attn.attend.attn_fn = lambda logits: old(logits)
    exact(attn(VECTORS), before)
    for squared in (lambda logits: logits.relu().square(), Squared()):
        attn.attend.attn_fn = squared
        maps = (q @ k.transpose(-1, -2) * 8**-0.5).relu().square()
        maps = maps.tril() if 'causal' in flags else maps
        exact(attn(VECTORS), output_of(attn, maps, v))
        exact(attn(VECTORS, return_intermediates=True)[1].post_softmax_attn, maps)
    with pytest.raises(TypeError, match=r'`attn_fn` must be a function.*got 3'):
        attn.attend.attn_fn = 3
    kernelized = Attention(16, heads=2, dim_head=8, kernel='elu')
    kernelized.attend.attn_fn = torch.relu
    with pytest.raises(ValueError, match='`attn_fn` was assigned, but `kernel` attends in its own way'):
        kernelized(torch.randn(1, 3, 16))


class Squared(nn.Module):
    def forward(self, logits):
        return logits.relu().square()


def test_what_can_be_read_of_an_operator():
    own = Attention(16, heads=2, dim_head=8, dropout=0.25).attend
    assert type(own.attn_dropout) is nn.Dropout and own.attn_dropout.p == own.dropout == 0.25
    assert own.head_attn_sink is None and not hasattr(own, 'sdp_context_manager')
    assert own.create_causal_mask(2, 3, 'cpu').tolist() == [[False, False, True], [False, False, False]]
    fused = Attention(16, heads=2, dim_head=8, flash=True).attend
    q = torch.randn(1, 2, 3, 8)
    with fused.sdp_context_manager():
        out, left = fused.flash_attn(q, q, q, causal=True)
    torch.testing.assert_close(out, F.scaled_dot_product_attention(q, q, q, is_causal=True))
    assert left.to_tuple() == (None, None, None)
    assert isinstance(Attention(16, heads=2, head_learned_sink=True).attend.head_attn_sink, nn.Parameter)


@pytest.mark.parametrize('flags', [{}, dict(softclamp_logits=True)], ids=str)
def test_the_clamp_of_logits_is_assigned(flags):
    attn, q, k, v = layer_and_parts(**flags)
    logits = q @ k.transpose(-1, -2) * 8**-0.5
    for alone in (False, True):
        own = attn.attend
        if alone:
            own = Attend(**flags)
            assert own.logit_softclamp_value == 50
        run = functools.partial(own, q, k, v, causal=False)
        own.softclamp_logits, own.logit_softclamp_value = True, 0.5
        assert own.softclamp_logits is True and own.logit_softclamp_value == 0.5
        exact(run()[0], (0.5 * (2 * logits).tanh()).softmax(dim=-1) @ v)
        own.softclamp_logits = False
        exact(run()[0], logits.softmax(dim=-1) @ v)
        with pytest.raises(ValueError, match=r'`logit_softclamp_value` must be positive, got -1'):
            own.logit_softclamp_value = -1
    attn.attend.softclamp_logits = True
    exact(attn(VECTORS), output_of(attn, (0.5 * (2 * logits).tanh()).softmax(dim=-1), v))


def test_intermediates_are_a_dataclass():
    net = token_model()
    whole = net(IDS)
    with torch.no_grad():
        _, cache = net(IDS[:, :8], return_intermediates=True)
    assert [field.name for field in dataclasses.fields(Intermediates)] == [
        'qk_similarities', 'pre_softmax_attn', 'post_softmax_attn', 'values', 'cached_kv', 'layer_type',
        'hybrid_hidden', 'log_probs',
    ]  # fmt: skip
    cache.attn_intermediates = [
        dataclasses.replace(own, cached_kv=tuple(t.flip(0) for t in own.cached_kv)) for own in cache.attn_intermediates
    ]
    assert [own.layer_type for own in cache.attn_intermediates] == ['a', 'a']
    out, left = net(IDS.flip(0), cache=cache, return_intermediates=True)
    exact(out[:, -1], whole.flip(0)[:, -1])
    own = left.attn_intermediates[0]
    own.post_softmax_attn = None
    assert own.post_softmax_attn is None and own.pre_softmax_attn is not None and own.post_softmax_attn is None
    with torch.no_grad():
        own = net(IDS, return_intermediates=True)[1].attn_intermediates[0]
    own.post_softmax_attn = None
    assert own.post_softmax_attn is None and own.pre_softmax_attn is not None
    assert copy.deepcopy(own).post_softmax_attn is None


# what a client edits or assigns


@pytest.mark.parametrize('positions', [None, torch.arange(7) * 2])
def test_slopes_of_alibi_belong_to_one_module(positions):
    (one, other), x = (Decoder(**SMALL, alibi_pos_bias=True).eval() for _ in range(2)), torch.randn(2, 7, 32)
    other.load_state_dict(one.state_dict())
    before, bias = one(x, pos=positions), one.rel_pos(7, 7)
    assert one.rel_pos.slopes.shape == (2, 1, 1) and one.rel_pos.device == x.device
    one.rel_pos.slopes.mul_(3)
    torch.testing.assert_close(one.rel_pos(7, 7), 3 * bias)
    assert not torch.allclose(one(x, pos=positions), before, atol=1e-4)
    torch.testing.assert_close(other(x, pos=positions), before)
    assert list(one.state_dict()) == list(other.state_dict())
    copied = copy.deepcopy(one)
    one.rel_pos.slopes.div_(3)
    torch.testing.assert_close(one(x, pos=positions), before)
    torch.testing.assert_close(copied.rel_pos(7, 7), 3 * bias)


def test_slopes_of_alibi_are_assigned():
    net, x = Decoder(**SMALL, alibi_pos_bias=True, alibi_num_heads=1).eval(), torch.randn(2, 7, 32)
    net.rel_pos.slopes = torch.tensor([0.5]).view(1, 1, 1)
    assert net.rel_pos.slopes.item() == 0.5 and net.rel_pos(1, 3).tolist() == [[[-1, -0.5, 0]], [[0, 0, 0]]]
    net.rel_pos.slopes = nn.Parameter(torch.full((1, 1, 1), 0.25))
    net(x).square().sum().backward()
    assert net.rel_pos.slopes.grad.abs() > 0 and 'rel_pos.slopes' in dict(net.named_parameters())
    assert net.half().rel_pos.slopes.dtype == torch.float16
    with pytest.raises(ValueError, match=r'`slopes` must have one per head, \(1, 1, 1\), got shape \(3,\)'):
        net.rel_pos.slopes = torch.ones(3)
    read = Decoder(**SMALL, alibi_pos_bias=True)
    assert read.rel_pos.slopes.dtype == read.half().rel_pos.slopes.dtype == torch.float32


class HalvedAngles(RotaryEmbedding):
    def forward(self, t, offset=0):
        angles, scale = super().forward(t, offset)
        return angles / 2, scale


class HalvedAnglesAlone(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.angles = RotaryEmbedding(dim)

    def forward(self, t):
        return self.angles(t / 2)[0], 1.0


@pytest.mark.parametrize('kind', [HalvedAngles, HalvedAnglesAlone])
def test_a_rotary_module_takes_positions_alone(kind):
    net, x = Decoder(**SMALL, rotary_pos_emb=True).eval(), torch.randn(2, 7, 32)
    wanted = net(x, pos=torch.arange(7) / 2)
    net.rotary_pos_emb = kind(net.rotary_pos_emb.dim)
    torch.testing.assert_close(net(x), wanted)
    _, cache = net(x[:, :5], return_hiddens=True)
    torch.testing.assert_close(net(x, cache=cache)[:, -2:], wanted[:, -2:])


def test_a_rotary_module_with_xpos_takes_positions_alone():
    net, x = Decoder(**SMALL, rotary_xpos=True).eval(), torch.randn(2, 7, 32)
    wanted = net(x)

    class Plain(RotaryEmbedding):
        def forward(self, t, offset=0):
            return super().forward(t, offset)

    net.rotary_pos_emb = Plain(net.rotary_pos_emb.dim, use_xpos=True)
    torch.testing.assert_close(net(x), wanted)


def test_a_subclass_draws_its_tables():
    def build(kind=TransformerWrapper, **flags):
        torch.manual_seed(0)
        return kind(num_tokens=9, max_seq_len=8, attn_layers=Decoder(**SMALL), **flags)

    class Zeros(TransformerWrapper):
        def init_(self):
            super().init_()
            nn.init.zeros_(self.to_logits.weight)
            nn.init.zeros_(self.token_emb.emb.weight)

    class Same(TransformerWrapper):
        pass

    assert not build(Zeros).token_emb.emb.weight.any() and not build(Zeros).to_logits.weight.any()
    torch.testing.assert_close(build(Same).state_dict(), build().state_dict())
    for flags, spread in ({}, (2 / 32) ** 0.5), (dict(l2norm_embed=True), 1e-5):
        net = build(**flags)
        before, draws = copy.deepcopy(net.state_dict()), {'token_emb.emb.weight', 'pos_emb.emb.weight'}
        net.init_()
        drawn = {name for name, t in net.state_dict().items() if not torch.equal(t, before[name])}
        assert drawn == (draws if flags else draws - {'pos_emb.emb.weight'})
        assert all(0.8 < net.state_dict()[name].std() / spread < 1.2 for name in drawn)


def test_further_attributes():
    def net(kind=Decoder, flags=(), **around):
        return TransformerWrapper(num_tokens=9, max_seq_len=8, attn_layers=kind(**SMALL, **dict(flags)), **around)

    assert not net().has_multiple_heads and net(num_output_heads=2).has_multiple_heads
    assert net().train_max_looped_steps == 4
    looped = net(flags=dict(pre_and_post_norm=True), looped=True, max_looped_steps=3)
    assert looped.train_max_looped_steps == 3
    assert net(tie_embedding=True).tie_embedding_scale == 32**-0.5
    assert net(tie_embedding=True, tie_embedding_scale=0.5).tie_embedding_scale == 0.5
    assert not AutoregressiveWrapper(net()).add_continuous_pred_head
    assert AutoregressiveWrapper(net(add_continuous_pred_head=True)).add_continuous_pred_head
    attn = Attention(32)
    assert attn.sublayer_dropout is None and attn.qk_norm_scale == 10 and attn.to_v_gate_activation is F.sigmoid
    assert Attention(32, gate_values=True, swiglu_values=True).to_v_gate_activation is F.silu
    for flag in 'alibi_pos_bias', 'rel_pos_bias', 'dynamic_pos_bias':
        assert Decoder(**SMALL, **{flag: True}).rel_pos.device == torch.device('cpu')


def test_the_activation_of_gates_is_replaced():
    attn, x = Attention(32, heads=2, dim_head=16, gate_values=True).eval(), torch.randn(2, 5, 32)
    ungated = Attention(32, heads=2, dim_head=16).eval()
    ungated.load_state_dict(attn.state_dict(), strict=False)
    attn.to_v_gate_activation = torch.ones_like
    torch.testing.assert_close(attn(x), ungated(x))


# names that a subclass takes for its own


IMAGE = torch.randn(2, 3, 8, 8)
SUBCLASSED = {
    'tokens': (
        TransformerWrapper,
        lambda: dict(num_tokens=9, max_seq_len=8, attn_layers=Decoder(**SMALL)),
        lambda net: net(torch.arange(5)[None]),
        ('head', 'embed', 'embedding', 'check', 'new_head', 'compose'),
    ),
    'vectors': (
        ContinuousTransformerWrapper,
        lambda: dict(dim_in=4, dim_out=3, max_seq_len=8, attn_layers=Encoder(**SMALL)),
        lambda net: net(torch.ones(2, 5, 4)),
        ('embed', 'read', 'stem', 'compose'),
    ),
    'images': (
        ViTransformerWrapper,
        lambda: dict(image_size=8, patch_size=4, num_classes=3, attn_layers=Encoder(**SMALL)),
        lambda net: net(IMAGE),
        ('head', 'check', 'tokens', 'hidden', 'positions', 'pooled', 'cropped'),
    ),
    'attention': (
        Attention,
        lambda: dict(dim=32, heads=2),
        lambda net: net(torch.ones(2, 5, 32)),
        ('projection', 'split', 'merged', 'turned', 'compose'),
    ),
    'feedforward': (
        FeedForward,
        lambda: dict(dim=32),
        lambda net: net(torch.ones(2, 5, 32)),
        ('layers', 'widen', 'output', 'outputs', 'last', 'compose'),
    ),
    'stack': (Decoder, lambda: SMALL, lambda net: net(torch.ones(2, 5, 32)), ('route', 'hint', 'compose')),
    'next tokens': (
        AutoregressiveWrapper,
        lambda: dict(net=TransformerWrapper(num_tokens=9, max_seq_len=8, attn_layers=Decoder(**SMALL))),
        lambda net: net(torch.arange(5)[None]),
        ('split', 'head', 'loss'),
    ),
    'next vectors': (
        ContinuousAutoregressiveWrapper,
        lambda: dict(net=ContinuousTransformerWrapper(max_seq_len=8, attn_layers=Decoder(**SMALL))),
        lambda net: net(torch.ones(2, 5, 32)),
        ('loss', 'rollout', 'drawn'),
    ),
}


@pytest.mark.parametrize('name', SUBCLASSED)
def test_modules_and_methods_of_a_subclass_are_its_own(name):
    kind, options, run, names = SUBCLASSED[name]

    def built(cls):
        torch.manual_seed(0)
        return cls(**options()).eval()

    wanted = run(built(kind))
    holds = built(type('Holds', (kind,), {}))
    for own in names:
        held = nn.Linear(2, 2)
        setattr(holds, own, held)
        assert getattr(holds, own) is held
        assert f'{own}.weight' in holds.state_dict()
    torch.testing.assert_close(run(holds), wanted)
    methods = built(type('Methods', (kind,), {own: lambda self: 5 for own in names}))
    assert all(getattr(methods, own)() == 5 for own in names)
    torch.testing.assert_close(run(methods), wanted)


def test_a_name_that_is_taken_is_refused():
    net = TransformerWrapper(num_tokens=9, max_seq_len=8, attn_layers=Decoder(**SMALL))
    for name, value in (
        ('explain', nn.Linear(2, 2)),
        ('run_stack', nn.Linear(2, 2)),
        ('describe', nn.Parameter(torch.ones(2))),
    ):
        with pytest.raises(AttributeError, match=f'`{name}` is an attribute of .*: use another name'):
            setattr(net, name, value)
        assert name not in net.state_dict()
    with pytest.raises(
        TypeError, match=r'`features` of TransformerWrapper must be its Features, got .*: use another name'
    ):
        net.features = nn.Linear(2, 2)

    class Mine(TransformerWrapper):
        def middle(self):
            pass

    mine = Mine(num_tokens=9, max_seq_len=8, attn_layers=Decoder(**SMALL))
    mine.middle = nn.Linear(2, 2)  # a class of theirs is their business


def test_a_flag_of_a_built_module_is_settled():
    """Another value would have no effect: it is refused. What is the same, or one's own, is taken."""
    net = TransformerWrapper(num_tokens=9, max_seq_len=8, attn_layers=Decoder(**SMALL))
    attention = net.attn_layers.layers[0][1]
    for module, name, value in (
        (attention, 'max_attend_past', 3),
        (attention, 'qk_norm', True),
        (net.attn_layers, 'residual_attn', True),
        (net.attn_layers, 'softclamp_output_value', 3.0),
        (net, 'sigsoftmax_logits', True),
    ):
        held = getattr(module, name)
        kind = type(module).__name__
        with pytest.raises(
            AttributeError, match=rf'`{name}` must be set at construction, got {value} instead of {held}: build {kind}'
        ):
            setattr(module, name, value)
        setattr(module, name, held)
        assert getattr(module, name) is held
    attention.causal = False  # read at each call
    net.theirs = 3
    assert net.theirs == 3

    class Mine(Encoder):
        def __init__(self):
            super().__init__(**SMALL)
            self.sandwich_norm = 'theirs'  # a class of theirs is their business while it is built

    assert Mine().sandwich_norm == 'theirs'


def test_keywords_by_position():
    """In the order of the original."""
    assert FeedForward(16, 16, 4, True, False, True).config == FeedForward(16, 16, glu=True, swish=True).config
    by_name = Attention(16, 8, heads=2, causal=True, post_talking_heads=True)
    assert Attention(16, 8, None, 2, True, None, False, True).config == by_name.config
    assert AttentionLayers(16, 1, 2, True, True).config == AttentionLayers(16, 1, 2, True, cross_attend=True).config
    with pytest.raises(TypeError, match='FeedForward got `glu` by position and as a keyword'):
        FeedForward(16, 16, 4, True, glu=True)
    with pytest.raises(TypeError, match=r'FeedForward takes only .*, got 23 positional arguments'):
        FeedForward(16, 16, 4, *[False] * 20)
