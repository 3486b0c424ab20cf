"""Long texts in segments whose queries all see the same number of keys: they are one text behind a window."""

import pytest
import torch
import training_laws
from oracles import assert_close, randn, randomised
from toy_tasks import IGNORED, SEEDS, cross, taught
from training_laws import DIM, ids_of

from x_transformers import (
    ContinuousTransformerWrapper,
    Decoder,
    MultiInputTransformerWrapper,
    TransformerWrapper,
    XLAutoregressiveWrapper,
    XValTransformerWrapper,
)
from x_transformers.core import rows
from x_transformers.flags import ConfigError

FAR, TOKENS = 5, 23
SAME = dict(max_seq_len=TOKENS, max_mem_len=FAR, mem_same_length=True)


def net_of(**keywords):
    return randomised(training_laws.net_of(**{**SAME, **keywords}), scale=0.4)


def in_segments(net, x, sizes, **inputs):
    """What a net gives for each part of x, which remembers the parts before it."""
    mems, found, start = None, [], 0
    for size in sizes:
        out, mems = net(x[:, start : start + size], mems=mems, return_mems=True, **inputs)
        found, start = [*found, out], start + size
    return torch.cat(found, dim=1)


def banded(net, x, far):
    """One pass in which a mask of pairs, written out, leaves each query `far` keys before itself."""
    place = range(x.shape[1])
    seen = torch.tensor([[0 <= i - j <= far for j in place] for i in place])
    return net(x, attn_mask=seen, mem_same_length=x.shape[1])


@pytest.mark.parametrize('sizes', [(TOKENS,), (5, 5, 5, 5, 3), (7, 9, 2, 4, 1), (1,) * 23], ids=str)
@pytest.mark.parametrize('stack', [{}, dict(depth=3, rotary_pos_emb=False, alibi_pos_bias=True)], ids=str)
def test_segments_are_one_text_behind_a_window(sizes, stack, monkeypatch):
    """Longer and shorter than memories, whole, in blocks of rows, and as the window of attention has it."""
    around = dict(use_abs_pos_emb=False)
    net, x = net_of(stack=stack, **around), ids_of(2, TOKENS)
    expected = banded(net, x, FAR)
    assert_close(in_segments(net, x, sizes), expected)
    near = net_of(stack={**stack, 'attn_max_attend_past': FAR}, **{**around, 'mem_same_length': False})
    assert_close(near(x), expected)
    monkeypatch.setattr(rows, 'LARGE', {'cpu': 0, 'cuda': 0})
    monkeypatch.setattr(rows, 'BLOCK', {'cpu': 1, 'cuda': 1})
    monkeypatch.setattr(rows, 'FEWEST_ROWS', 2)
    assert_close(in_segments(net, x, sizes), expected)


def test_it_reaches_over_as_many_keys_in_each_layer():
    """Of three layers the first query of a segment knows the token `3 * FAR` before it, and none before that."""
    net, x, start = net_of(stack=dict(depth=3)), ids_of(1, TOKENS), TOKENS - FAR
    first = in_segments(net, x, (3, FAR, FAR, FAR, FAR))[:, start]
    for at in range(start):
        other = x.clone()
        other[:, at] = (other[:, at] + 1) % 11
        same = torch.equal(in_segments(net, other, (3, FAR, FAR, FAR, FAR))[:, start], first)
        assert same == (at < start - 3 * FAR), at


def test_padding_on_the_left_is_not_counted():
    """A row with padding between its memories and its tokens sees as far as a row without."""
    net, x = net_of(), ids_of(2, 7)
    mems = [randn(2, FAR, DIM, seed=layer) for layer in range(2)]
    alone = torch.cat([net(x[1:, 3:], mems=[mem[1:] for mem in mems])])
    out = net(x, mems=mems, seq_start_pos=torch.tensor([0, 3]))
    assert_close(out[1:, 3:], alone)
    assert_close(out[:1], net(x[:1], mems=[mem[:1] for mem in mems]))


def test_masked_memories_count_but_are_not_seen():
    net, x = net_of(stack=dict(depth=1)), ids_of(2, 3)
    mems, real = [randn(2, FAR, DIM)], torch.tensor([[False] * 2 + [True] * 3, [True] * 5])
    out = net(x, mems=mems, mem_masks=[real])
    fewer = net(x[:1], mems=[mems[0][:1, 2:]])
    assert_close(out[:1], fewer)  # these stand nearest
    assert_close(out[1:], net(x[1:], mems=[mems[0][1:]]))


@pytest.mark.parametrize('kind', ['vectors', 'streams', 'numbers'])
def test_every_wrapper_with_memories_has_it(kind):
    stack = Decoder(dim=DIM, depth=2, heads=2, attn_dim_head=8, rotary_pos_emb=True)
    of = dict(attn_layers=stack, max_seq_len=0, max_mem_len=FAR, mem_same_length=True)
    x = ids_of(2, TOKENS)
    if kind == 'vectors':
        net, x = ContinuousTransformerWrapper(dim_in=3, dim_out=3, **of), randn(2, TOKENS, 3)
        call, cut = net, lambda s: x[:, s]
    elif kind == 'streams':
        net = MultiInputTransformerWrapper(num_tokens=dict(a=11), **of)
        call, cut = net, lambda s: dict(a=x[:, s])
    else:
        net = XValTransformerWrapper(num_tokens=11, numerical_token_id=3, **of)
        call, cut = (lambda x, **inputs: net(*x, **inputs)), lambda s: (x[:, s], x[:, s] / 2.0)
    net = randomised(net, scale=0.4)

    def out(found):
        return (
            next(iter(found.values())) if isinstance(found, dict) else found[0] if isinstance(found, tuple) else found
        )

    whole = out(call(cut(slice(None))))
    _, mems = call(cut(slice(0, 16)), return_mems=True)
    assert_close(out(call(cut(slice(16, None)), mems=mems)), whole[:, 16:])


def test_generation_sees_as_far_as_training():
    net, x = net_of(max_seq_len=4, use_abs_pos_emb=False), ids_of(2, 6)
    model = XLAutoregressiveWrapper(net)
    expected = x
    for _ in range(9):
        logits = banded(net, expected, FAR)
        expected = torch.cat((expected, logits[:, -1:].argmax(dim=-1)), dim=1)
    for cache_kv in (True, False):
        assert torch.equal(model.generate(x, 9, temperature=0.0, cache_kv=cache_kv), expected[:, 6:])


def test_what_is_refused():
    with pytest.raises(ConfigError, match='`mem_same_length` needs `max_mem_len`, which says how many keys'):
        net_of(max_mem_len=0)
    net, x = net_of(), ids_of(2, 3)
    with pytest.raises(TypeError, match='`mem_same_length` must be an integer of at least 0, got -1'):
        net(x, mem_same_length=-1)
    mems = net(x, return_mems=True)[1]
    with pytest.raises(ValueError, match=r'`mems\[0\]` must .*got \(2, 3, 16\)'):
        net(x[:1], mems=mems)


@pytest.mark.parametrize('positions', [{}, dict(sinu_pos_emb=True), dict(axial_abs_pos_emb=(5, 5))], ids=str)
def test_absolute_positions_beside_memories_are_warned_of_once(positions, logged):
    net, x = net_of(stack=dict(rotary_pos_emb=False), **positions), ids_of(2, 4)
    mems = net(x, return_mems=True)[1]
    net(x, mems=mems, pos=torch.arange(4, 8))
    net(x, mems=[None, None])
    assert not logged
    for _ in range(2):
        net(x, mems=mems)
    assert len(logged) == 1 and '`mems` with absolute positions: every segment starts at position 0' in logged[0]


def test_positions_of_distances_are_right_beside_memories(logged):
    net, x = net_of(), ids_of(2, 4)
    net(x, mems=net(x, return_mems=True)[1])
    assert not logged


@pytest.mark.slow
@SEEDS
@pytest.mark.parametrize(
    ('remembers', 'positions'), [(True, 'rotary_pos_emb'), (False, 'rotary_pos_emb'), (True, 'xl_rel_pos')]
)
def test_a_secret_of_the_segment_before_is_known(remembers, positions, seed):
    """T-cross: with memories at least 95 % are right, without them no more than by guessing."""
    torch.manual_seed(seed)
    task = cross(1, segments=2)
    size = task.n // 2
    stack = Decoder(dim=48, depth=2, heads=4, attn_dim_head=12, **{positions: True})
    of = dict(num_tokens=task.tokens, logits_dim=task.answers, max_seq_len=size, max_mem_len=size)
    net = TransformerWrapper(attn_layers=stack, mem_same_length=True, **of)

    def read(x):
        _, mems = net(x[:, :size], return_mems=True)
        return net(x[:, size:], mems=mems if remembers else None)

    def loss():
        x, y = task.draw(64)
        return torch.nn.functional.cross_entropy(read(x).transpose(1, 2), y[:, size:], ignore_index=IGNORED)

    taught(net, loss, 250)
    x, y = task.draw(300)
    asked = y[:, size:] != IGNORED
    with torch.no_grad():
        found = (read(x).argmax(dim=-1) == y[:, size:])[asked].float().mean().item()
    assert found >= 0.95 if remembers else abs(found - task.chance) < 0.06
