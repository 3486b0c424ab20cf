"""Ways in which published packages use this one, each cut down to the few lines that they rely on."""

import pytest
import torch

from x_transformers import ContinuousTransformerWrapper, CrossAttender, Decoder, Encoder, TransformerWrapper
from x_transformers.x_transformers import PolarEmbedding, RotaryEmbedding

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
        with pytest.raises(TypeError, match=f'(?s)`{name}` got .*, it must be a pair'):
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
