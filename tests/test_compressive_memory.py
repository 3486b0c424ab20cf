"""Compressed memories, against a plain model that is handed the same memories, made in loops from the paper's text."""

import math

import pytest
import torch
import torch.nn.functional as F
import toy_tasks
import training_laws
from oracles import assert_close, randn, randomised
from torch import nn
from training_laws import DIM, VOCAB, ids_of, net_of

from x_transformers import ContinuousTransformerWrapper, Decoder, TransformerWrapper
from x_transformers.features.memory.compression import Conv, DilatedConv, Max, Mean, MostUsed
from x_transformers.flags import ConfigError
from x_transformers.training import NamedLosses
from x_transformers.xl_autoregressive_wrapper import XLAutoregressiveWrapper

FUNCTIONS = ('conv', 'mean', 'max', 'dilated_conv', 'most_used')
SIZE, MOST, OLD = 4, 5, 3


def model(**flags):
    sizes = dict(max_seq_len=SIZE, max_mem_len=MOST, cmem_len=OLD, cmem_ratio=2)
    return randomised(net_of(**{**sizes, **flags}), scale=0.4)


def plain(net):
    """The same model without what compresses."""
    own = net_of(max_seq_len=net.max_seq_len, max_mem_len=net.max_mem_len).double()
    own.load_state_dict({n: t for n, t in net.state_dict().items() if '.cmem.' not in n})
    return own.eval()


def conv_by_hand(conv, rows):
    """A convolution of as many rows as it is wide:  (c d) -> d."""
    return conv.bias + sum(conv.weight[:, :, at] @ row for at, row in enumerate(rows))


def dilated_by_hand(convs, rows, at):
    """The output at a place of a row of vectors, zeros in front of it, by recursion from the last convolution."""

    def value(depth, place):
        if depth < 0:
            return rows[place] if place >= 0 else torch.zeros_like(rows[0])
        first, last = (value(depth - 1, place - back) for back in (convs[depth].dilation[0], 0))
        if depth > 0:
            first, last = F.gelu(first), F.gelu(last)
        return conv_by_hand(convs[depth], (first, last))

    return value(len(convs) - 1, at)


def compressed_by_hand(function, old, use=None):
    """One row of memories (n d) as fewer, in loops."""
    c, n = function.ratio, len(old)
    if isinstance(function, MostUsed):
        best = sorted(range(n), key=lambda at: -use[at])[: math.ceil(n / c)]
        return torch.stack([old[at] for at in sorted(best)])
    front = -n % c
    edge = old[0] if isinstance(function, (Mean, Max)) else torch.zeros_like(old[0])
    padded = [edge] * front + list(old)
    out = []
    for start in range(0, len(padded), c):
        rows = torch.stack(padded[start : start + c])
        if isinstance(function, Mean):
            out.append(sum(rows) / c)
        elif isinstance(function, Max):
            out.append(torch.stack([max(column) for column in rows.T]))
        elif isinstance(function, Conv):
            out.append(conv_by_hand(function.conv, rows))
        else:
            out.append(dilated_by_hand(function.convs, padded, start + c - 1))
    return torch.stack(out)


def content_by_hand(layer, h, memories):
    """Attention of one row of states (n d) to memories (j d), head by head, without places."""
    norm, attention = layer[0][0], layer[1]
    q, k, v = (to(norm(x)) for to, x in ((attention.to_q, h), (attention.to_k, memories), (attention.to_v, memories)))
    out = []
    for head in range(attention.heads):
        own = slice(head * 8, head * 8 + 8)
        out.append((q[:, own] @ k[:, own].T / math.sqrt(8)).softmax(dim=-1) @ v[:, own])
    return torch.cat(out, dim=-1)


def back_by_hand(function, new, count):
    out = []
    for row in new:
        for at in range(function.ratio):
            back = getattr(function, 'back', None)
            out.append(row if back is None else back.bias + back.weight[:, :, at].T @ row)
    return torch.stack(out[len(out) - count :])


def segments_by_hand(net, ids, loss=None):
    """Logits of each segment, memories after each, and the losses of each, from the plain model."""
    base, layers = plain(net), [net.attn_layers.layers[at] for at in (0, 2)]
    mems = [(randn(len(ids), 0, DIM), randn(len(ids), 0, DIM)) for _ in layers]
    for segment in ids.split(SIZE, dim=1):
        rows = [torch.cat((cmem, mem), dim=1) for mem, cmem in mems]
        logits, trace = base(segment, mems=rows, return_intermediates=True)
        new, total = [], 0.0
        for at, (h, (mem, cmem)) in enumerate(zip(trace.hiddens, mems, strict=True)):
            whole, function = torch.cat((mem, h), dim=1), net.attn_layers.cmem[at]
            left = max(whole.shape[1] - net.max_mem_len, 0)
            if left:
                weights = trace.attn_intermediates[at].post_softmax_attn.mean(dim=1).sum(dim=1)[:, cmem.shape[1] :]
                made = [compressed_by_hand(function, row[:left], use) for row, use in zip(whole, weights, strict=True)]
                for row, own, states in zip(whole, made, h, strict=True):
                    if loss == 'ae':
                        total = total + (row[:left] - back_by_hand(function, own, left)).square().mean() / len(ids)
                    if loss == 'attn':
                        pair = [content_by_hand(layers[at], states, m) for m in (row[:left], own)]
                        total = total + (pair[0] - pair[1]).square().mean() / len(ids)
                cmem = torch.cat((cmem, torch.stack(made)), dim=1)
                cmem = cmem[:, max(cmem.shape[1] - OLD, 0) :]
            new.append((whole[:, left:], cmem))
        mems = [tuple(t.detach() for t in pair) for pair in new]
        yield logits, mems, total


# what is kept


@pytest.mark.parametrize('fn', FUNCTIONS)
def test_segments_and_their_losses_by_hand(fn):
    for loss in ('attn', 'ae') if fn != 'most_used' else ('attn',):
        net, ids, mems = model(cmem_fn=fn, cmem_loss=loss, cmem_loss_weight=0.7), ids_of(2, 18), None
        for segment, wanted in zip(ids.split(SIZE, dim=1), segments_by_hand(net, ids, loss), strict=True):
            logits, trace = net.train()(segment, mems=mems, return_mems=True, return_intermediates=True)
            assert_close(logits, wanted[0])
            assert_close(torch.as_tensor(trace.aux_losses.get('cmem', 0.0)), torch.as_tensor(wanted[2] * 0.7))
            mems = trace.mems
            for own, theirs in zip(mems, wanted[1], strict=True):
                for part, other in zip(own, theirs, strict=True):
                    assert not part.requires_grad
                    assert_close(part, other)
            quiet, silent = net.eval()(segment, mems=mems, return_mems=True, return_intermediates=True)
            assert not silent.aux_losses
            assert quiet.isfinite().all() and [own[0].shape for own in silent.mems] == [(2, min(MOST, 5), DIM)] * 2


def test_numbers_of_five_segments():
    """n = 2, m = 4, cmem = 2, c = 2: the mean of what leaves, oldest first, with states that are the tokens."""

    class Numbers(nn.Embedding):
        def forward(self, ids):
            return ids.double().unsqueeze(-1).expand(-1, -1, DIM)

    net = net_of(max_seq_len=2, max_mem_len=4, cmem_len=2, cmem_ratio=2, cmem_fn='mean', token_emb=Numbers(VOCAB, DIM))
    net, mems, found = net.double().eval(), None, []
    for start in range(1, 11, 2):
        _, mems = net(torch.tensor([[start, start + 1]]), mems=mems, return_mems=True)
        found.append(tuple(part[0, :, 0].tolist() for part in mems[0]))
    assert found == [
        ([1, 2], []),
        ([1, 2, 3, 4], []),
        ([3, 4, 5, 6], [1.5]),
        ([5, 6, 7, 8], [1.5, 3.5]),
        ([7, 8, 9, 10], [3.5, 5.5]),
    ]


@pytest.mark.parametrize('loss', ['attn', 'ae'])
def test_a_ratio_of_one_is_a_longer_memory(loss):
    net, ids = model(cmem_fn='mean', cmem_ratio=1, cmem_loss=loss).train(), ids_of(2, 20)
    longer, mems, theirs = plain(net), None, None
    longer.max_mem_len = MOST + OLD
    for segment in ids.split(SIZE, dim=1):
        logits, trace = net(segment, mems=mems, return_mems=True, return_intermediates=True)
        wanted, theirs = longer(segment, mems=theirs, return_mems=True)
        mems = trace.mems
        assert_close(logits, wanted)
        assert all(value.abs() < 1e-25 for value in trace.aux_losses.values())
    assert len(trace.aux_losses) == 1


@pytest.mark.parametrize('c', [2, 3, 4, 5])
@pytest.mark.parametrize('kind', [Conv, DilatedConv, Mean, Max])
def test_memories_that_do_not_divide(kind, c):
    function = kind(c) if kind in (Mean, Max) else randomised(kind(c, 3, True, False))
    for n in (1, c - 1, c, c + 1, 3 * c + 1):
        old = randn(2, n, 3, seed=n)
        new, real = function(old)
        wanted = torch.stack([compressed_by_hand(function, row) for row in old])
        assert_close(new, wanted)
        assert real is None and new.shape[1] == math.ceil(n / c)
        assert_close(function.expanded(new, n), torch.stack([back_by_hand(function, row, n) for row in new]))


def test_the_means_that_convolutions_may_start_with():
    old = randn(2, 12, 3)
    conv, mean = Conv(4, 3, True, True).double(), Mean(4)
    assert_close(conv(old)[0], mean(old)[0])
    assert_close(conv.expanded(old[:, :3], 12), mean.expanded(old[:, :3], 12))
    dilated = DilatedConv(2, 3, False, True).double()  # one convolution: nothing between
    assert_close(dilated(old)[0], Mean(2)(old)[0])


def test_what_is_most_used_is_kept():
    planted = torch.tensor([[0.1, 0.9, 0.0, 0.2, 0.8], [0.5, 0.1, 0.6, 0.7, 0.0]])
    old = randn(2, 5, 3)
    new, _ = MostUsed(2).kept(old, None, planted)
    assert torch.equal(new, torch.stack((old[0, [1, 3, 4]], old[1, [0, 2, 3]])))
    hidden = torch.tensor([[True, False, True, True, True]] * 2)
    new, real = MostUsed(2).kept(old, hidden, planted)
    assert torch.equal(new[0], old[0, [0, 3, 4]]) and real.all()


def test_pools_of_real_entries():
    real = torch.tensor([[True, False, True, False, False, True, True, True, True]])
    old = randn(1, 9, 3) - 5  # where zeros would be the largest
    mean, largest = (kind(3)(old, real) for kind in (Mean, Max))
    groups = [old[0, [0, 2]], old[0, [5]], old[0, 6:]]
    assert_close(mean[0][0], torch.stack([group.mean(dim=0) for group in groups]))
    assert_close(largest[0][0], torch.stack([group.amax(dim=0) for group in groups]))
    assert mean[1].all() and largest[1].all()
    new, known = Max(3)(old[:, 2:5], real[:, 3:6] & False)
    assert not known.any() and torch.equal(new, torch.zeros(1, 1, 3))


def test_use_is_counted_over_the_calls_of_a_segment():
    """Of real queries, a cache or not."""
    net, ids = model(cmem_fn='most_used'), ids_of(2, SIZE)
    mems = [(randn(2, 5, DIM, seed=at), randn(2, 3, DIM, seed=7 + at)) for at in range(2)]
    whole = [torch.cat((cmem, mem), dim=1) for mem, cmem in mems]
    real = torch.tensor([[True, False, True, True], [True] * 4])

    def use(inter):
        return inter.model_states['mem_use'].value

    first, inter = None, None
    for size in (2, 1, 1):
        first = size if first is None else first + size
        inputs = dict(cache=inter) if inter is not None else {}
        _, inter = net(ids[:, :first], mask=real[:, :first], mems=mems, return_intermediates=True, **inputs)
    _, once = net(ids, mask=real, mems=mems, return_intermediates=True)
    _, trace = plain(net)(ids, mask=real, mems=whole, return_intermediates=True)
    weights = [own.post_softmax_attn.mean(dim=1) * real.unsqueeze(-1) for own in trace.attn_intermediates]
    wanted = torch.stack([own.sum(dim=1)[:, :8] for own in weights], dim=1)
    assert_close(use(once), wanted)
    assert_close(use(inter), wanted)


def test_compressed_memories_are_seen():
    net, mems = model(), [(randn(2, 5, DIM, seed=at), randn(2, 3, DIM, seed=7 + at)) for at in range(2)]
    ids = ids_of(2, SIZE)
    whole = [torch.cat((cmem, mem), dim=1) for mem, cmem in mems]
    assert_close(net(ids, mems=mems), plain(net)(ids, mems=whole))
    assert_close(net(ids, mems=[mem for mem, _ in mems]), plain(net)(ids, mems=[mem for mem, _ in mems]))
    assert (net(ids, mems=mems) - net(ids, mems=[(mem, None) for mem, _ in mems])).abs().max() > 1e-3


def test_memories_go_down_in_pairs():
    net, ids = model(shift_mem_down=1), ids_of(2, SIZE)
    base, mems = plain(net), [(randn(2, 5, DIM, seed=at), randn(2, 3, DIM, seed=7 + at)) for at in range(2)]
    masks = [(torch.rand(2, 5) < 0.5, torch.rand(2, 3) < 0.5) for _ in mems]
    whole, hidden = ([torch.cat(pair[::-1], dim=1) for pair in pairs[::-1]] for pairs in (mems, masks))
    assert_close(net(ids, mems=mems, mem_masks=masks), base(ids, mems=whole, mem_masks=hidden))


def test_a_flow_of_gradients_between_segments():
    """Memories keep their gradients where they are wanted, and then the task teaches what compresses."""
    net, ids = model(cmem_loss=None).train(), ids_of(2, 12)
    for detach in (True, False):
        net.zero_grad()
        mems = None
        for segment in ids.split(SIZE, dim=1):
            _, mems = net(segment, mems=mems, return_mems=True, detach_mems=detach)
        net(ids[:, :4], mems=mems).square().sum().backward()
        grads = [p.grad for n, p in net.named_parameters() if '.cmem.' in n]
        assert all((g is None or g.abs().max() == 0) if detach else g.abs().max() > 0 for g in grads)


# losses


@pytest.mark.parametrize('detach', [True, False])
@pytest.mark.parametrize('fn', ['conv', 'dilated_conv'])
@pytest.mark.parametrize('loss', ['attn', 'ae'])
def test_its_loss_teaches_what_compresses_and_nothing_else(fn, loss, detach):
    stack = dict(attn_qk_rmsnorm=True, attn_qkv_bias=True, use_rmsnorm=True)
    net, ids, mems = model(cmem_fn=fn, cmem_loss=loss, stack=stack).train(), ids_of(2, 12), None
    for segment in ids.split(SIZE, dim=1):
        _, trace = net(segment, mems=mems, return_mems=True, return_intermediates=True, detach_mems=detach)
        mems = trace.mems
    trace.aux_losses['cmem'].backward()
    for name, parameter in net.named_parameters():
        moved = parameter.grad is not None and bool(parameter.grad.abs().max() > 0)
        assert moved == ('.cmem.' in name), name


@pytest.mark.parametrize('stack', [{}, dict(checkpoint_layers=True)], ids=str)
@pytest.mark.parametrize('fn', ['conv', 'most_used'])
def test_segments_of_a_wrapper_add_it_once(stack, fn):
    """Each segment's, weighted by its part of the targets."""
    wrapper, ids = XLAutoregressiveWrapper(model(cmem_fn=fn, stack=stack)).train(), ids_of(2, 15)
    losses = [torch.as_tensor(loss).item() for *_, loss in segments_by_hand(wrapper.net, ids[:, :-1], 'attn')]
    total = sum(loss * size for loss, size in zip(losses, (4, 4, 4, 2), strict=True)) / 14
    with NamedLosses() as named:
        loss = wrapper(ids)
    assert_close(named.by_name['cmem'], torch.tensor(total, dtype=torch.float64), tolerance=1e-7)
    assert_close(loss.detach(), wrapper.eval()(ids) + total, tolerance=1e-7)
    wrapper.zero_grad()
    loss.backward()


def test_attention_of_fewer_heads_norms_and_scales_by_hand():
    stack = dict(heads=4, attn_dim_head=8, attn_kv_heads=2, attn_qk_norm=True, attn_value_dim_head=5)
    net = model(cmem_fn='mean', cmem_loss='attn', stack=stack).train()
    mems = [(randn(2, 5, DIM, seed=at), None) for at in range(2)]
    _, trace = net(ids_of(2, 2), mems=mems, return_mems=True, return_intermediates=True)
    total = 0.0
    for at, h in zip((0, 2), trace.hiddens, strict=True):
        (norm, *_), attention, _ = net.attn_layers.layers[at]
        old = mems[at // 2][0][:, :2]
        found = []
        for memories in (old, old.mean(dim=1, keepdim=True)):
            q = F.normalize(attention.to_q(norm(h)).unflatten(-1, (4, 8)), dim=-1)
            k = F.normalize(attention.to_k(norm(memories)).unflatten(-1, (2, 8)), dim=-1)
            v = attention.to_v(norm(memories)).unflatten(-1, (2, 5))
            heads = []
            for head in range(4):
                weights = (q[:, :, head] @ k[:, :, head % 2].mT * 10).softmax(dim=-1)
                heads.append(weights @ v[:, :, head % 2])
            found.append(torch.stack(heads, dim=2))
        total = total + (found[0] - found[1]).square().mean()
    assert_close(trace.aux_losses['cmem'], total)


# padding, rows, a cache within a segment


@pytest.mark.parametrize('fn', FUNCTIONS)
def test_padding_is_no_part_of_memories(fn):
    """What it holds never matters, to logits, to memories that are real, nor to losses."""
    net, ids = model(cmem_fn=fn).train(), ids_of(2, 16)
    mask = torch.ones(2, 16, dtype=torch.bool)
    mask[0, 2:6] = mask[1, 5:7] = mask[0, 9:11] = False
    outs = []
    for given in (ids, torch.where(mask, ids, (ids + 3) % VOCAB)):
        mems, masks, seen = None, None, []
        for segment, real in zip(given.split(SIZE, dim=1), mask.split(SIZE, dim=1), strict=True):
            inputs = dict(mems=mems, mem_masks=masks, mask=real)
            logits, trace = net(segment, **inputs, return_mems=True, return_intermediates=True)
            mems, masks = trace.mems, trace.mem_masks
            kept = [
                t[own]
                for pair in zip(mems, masks, strict=True)
                for t, own in zip(*pair, strict=True)
                if own is not None
            ]
            seen += [logits[real], *kept, *trace.aux_losses.values()]
        outs.append(seen)
    assert len(outs[0]) > 10
    for own, other in zip(*outs, strict=True):
        assert_close(own, other)


@pytest.mark.parametrize('fn', ['mean', 'max', 'conv', 'most_used'])
def test_a_row_with_padding_compresses_its_own_tokens(fn):
    """Pools are those of real entries; with padding of whole groups, memories are those of a row without it."""
    net, ids = model(cmem_fn=fn, max_mem_len=4, stack=dict(rotary_pos_emb=False)), ids_of(2, 4)
    real = torch.tensor([[True, True, False, False]] * 2)
    old = [(randn(2, 4, DIM, seed=at), None) for at in range(2)]
    masks = [(torch.tensor([[False, False, True, True]] * 2), None)] * 2
    _, trace = net(ids, mask=real, mems=old, mem_masks=masks, return_mems=True, return_intermediates=True)
    for (mem, cmem), (mem_real, cmem_real), pair in zip(trace.mems, trace.mem_masks, old, strict=True):
        assert mem_real.tolist() == real.tolist() and mem.shape == (2, 4, DIM)
        if fn != 'most_used':
            assert cmem_real.tolist() == [[False, True]] * 2
            assert_close(cmem[:, 1:], net.attn_layers.cmem[0](pair[0][:, 2:])[0] if fn != 'conv' else cmem[:, 1:])
        else:
            assert cmem_real.all()
            assert torch.equal(cmem, pair[0][:, 2:])


def test_padding_on_the_left():
    net, ids = model(cmem_fn='mean'), ids_of(2, 8)
    start = torch.tensor([2, 0])
    outs = []
    for first in (
        ids,
        torch.cat(
            ((ids[:, :2] + 1) % VOCAB * torch.tensor([[1], [0]]) + ids[:, :2] * torch.tensor([[0], [1]]), ids[:, 2:]),
            dim=1,
        ),
    ):
        _, trace = net(first[:, :4], seq_start_pos=start, return_mems=True, return_intermediates=True)
        assert trace.mem_masks[0][0].tolist() == [[False, False, True, True], [True] * 4]
        logits, _ = net(first[:, 4:], mems=trace.mems, mem_masks=trace.mem_masks, return_mems=True)
        outs.append(logits)
    assert_close(*outs)


@pytest.mark.parametrize('fn', FUNCTIONS)
def test_rows_do_not_meet(fn):
    net, ids = model(cmem_fn=fn), ids_of(3, 16)

    def last(ids):
        mems = None
        for segment in ids.split(SIZE, dim=1):
            logits, mems = net(segment, mems=mems, return_mems=True)
        return logits

    assert_close(last(ids)[1:2], last(ids[1:2]))


@pytest.mark.costly
@pytest.mark.parametrize('fn', ['most_used', *(pytest.param(fn, marks=pytest.mark.slow) for fn in FUNCTIONS[:4])])
@pytest.mark.parametrize('cached', [True, False])
def test_generation_goes_on_as_training_reads(fn, cached):
    wrapper, known = XLAutoregressiveWrapper(model(cmem_fn=fn)).eval(), ids_of(2, 14)
    out = wrapper.generate(known, 9, temperature=0.0, cache_kv=cached)
    for _ in range(9):
        *_, (logits, _, _) = segments_by_hand(wrapper.net, known)
        known = torch.cat((known, logits[:, -1:].argmax(dim=-1)), dim=1)
    assert torch.equal(out, known[:, 14:])


# around it


def test_names_of_its_weights():
    def names(**flags):
        return {n.removeprefix('attn_layers.cmem.'): tuple(t.shape)
                for n, t in model(cmem_ratio=4, **flags).state_dict().items() if '.cmem.' in n}  # fmt: skip

    conv = {'conv.weight': (DIM, DIM, 4), 'conv.bias': (DIM,)}
    assert names() == {f'{at}.{n}': size for at in (0, 1) for n, size in conv.items()}
    back = conv | {'back.weight': (DIM, DIM, 4), 'back.bias': (DIM,)}
    assert names(cmem_loss='ae') == {f'{at}.{n}': size for at in (0, 1) for n, size in back.items()}
    dilated = {f'convs.{k}.{n}': size for k in (0, 1) for n, size in (('weight', (DIM, DIM, 2)), ('bias', (DIM,)))}
    assert names(cmem_fn='dilated_conv') == {f'{at}.{n}': size for at in (0, 1) for n, size in dilated.items()}
    assert not any(names(cmem_fn=fn) for fn in ('mean', 'max', 'most_used'))
    assert len(model(stack=dict(weight_tie_layers=True)).attn_layers.cmem) == 1


def test_vectors_have_compressed_memories_too():
    stack = Decoder(dim=DIM, depth=1, heads=2, attn_dim_head=8, rotary_pos_emb=True, verbose=False)
    net = randomised(ContinuousTransformerWrapper(attn_layers=stack, max_mem_len=4, cmem_len=2, cmem_ratio=2))
    x, mems = randn(2, 12, DIM), None
    for segment in x.split(4, dim=1):
        out, mems = net(segment, mems=mems, return_mems=True)
    assert [t.shape[1] for t in mems[0]] == [4, 2] and out.isfinite().all()
    assert_close(mems[0][1], net.attn_layers.cmem[0](x[:, 4:8])[0])  # a layer's input is the vectors themselves


@pytest.mark.parametrize('fn', ['conv', 'most_used'])
def test_copies_and_half_precision(fn):
    wrapper, ids = XLAutoregressiveWrapper(model(cmem_fn=fn)).train(), ids_of(2, 14)
    training_laws.check_copies(wrapper, lambda own: own(ids))
    if fn == 'conv':
        training_laws.check_half_precision(wrapper, lambda own: own(ids), tolerance=0.05)


@pytest.mark.nightly
@pytest.mark.parametrize('fn', FUNCTIONS)
def test_one_graph(fn):
    net, ids = model(cmem_fn=fn).train(), ids_of(2, SIZE)
    mems = [(randn(2, 5, DIM, seed=at), randn(2, 3, DIM, seed=7 + at)) for at in range(2)]

    def call(net):
        logits, trace = net(ids, mems=mems, return_mems=True, return_intermediates=True)
        return torch.cat([t.flatten() for t in (logits, trace.aux_losses['cmem'], *sum(trace.mems, ()))])

    training_laws.check_one_graph(net, call)


REFUSED = [
    (dict(max_mem_len=0), '`cmem_len` needs `max_mem_len`'),
    (dict(cmem_ratio=1), '`cmem_ratio` must '),
    (dict(cmem_ratio=1, cmem_fn='dilated_conv'), '`cmem_ratio` must '),
    (dict(cmem_fn='most_used', cmem_loss='ae'), "`cmem_loss='ae'` cannot be combined with `cmem_fn='most_used'`"),
    (dict(cmem_fn='most_used', stack=dict(attn_flash=True)), 'most_used.* cannot be combined with `attn_flash=True`'),
    (dict(cmem_fn='most_used', stack=dict(layer_dropout=0.1)), 'most_used.* cannot be combined with `layer_dropout`'),
    (dict(cmem_fn='most_used', stack=dict(attn_max_attend_past=2)), 'cannot be combined with `attn_max_attend_past`'),
    (dict(stack=dict(use_adaptive_layernorm=True)), "`cmem_loss='attn'` cannot be .*with `use_adaptive_layernorm`"),
    (dict(stack=dict(attn_use_latent_q=True, attn_dim_latent_q=4)), "`cmem_loss='attn'` needs queries, keys"),
    (dict(cmem_fn='median'), '`cmem_fn` must be'),
    (dict(cmem_ratio=0), '`cmem_ratio` must be'),
]  # fmt: skip


@pytest.mark.parametrize('flags, words', REFUSED, ids=[words for _, words in REFUSED])
def test_refused_settings(flags, words):
    with pytest.raises(ConfigError, match=words):
        net_of(**{**dict(max_seq_len=SIZE, max_mem_len=MOST, cmem_len=OLD, cmem_ratio=2), **flags})


def test_refused_calls():
    net, ids, mem = model(max_seq_len=12), ids_of(2, SIZE), randn(2, 3, DIM)
    pairs, documents, short = [(mem, mem)] * 2, dict(document_ids=torch.zeros_like(ids)), mem[:, :2, 0] > 0
    two_streams = model(stack=dict(reversible=True)).train()
    for call, words in (
        (lambda: net(ids_of(2, 6), return_mems=True), '`max_mem_len` must '),
        (lambda: net(ids, mems=[mem, (mem, mem, mem)]), r'`mems\[1\]` must '),
        (lambda: net(ids, mems=[(mem, randn(1, 3, DIM)), None]), r'`mems\[0\]\[1\]` must '),
        (lambda: net(ids, mems=[(mem, mem)]), '`mems` must '),
        (lambda: net(ids, mems=pairs, mem_masks=[(None, short)] * 2), r'`mem_masks\[0\]` must '),
        (lambda: net(ids, mems=pairs, mem_masks=[None]), '`mem_masks` must '),
        (lambda: net(ids, **documents, return_mems=True), '`document_ids` cannot be combined with `cmem_len`'),
        (lambda: two_streams(ids, return_mems=True), '`reversible` cannot be combined with `cmem_len`'),
        (lambda: net(ids, layers_execute_order=(0, 1), return_mems=True), '`cmem_len` needs the ordinary order'),
        (lambda: plain(net)(ids, mems=pairs), r'`mems\[0\]`'),
    ):  # fmt: skip
        with pytest.raises((ValueError, TypeError), match=words):
            call()


# what it is for


@pytest.mark.nightly
def test_it_remembers_what_plain_memories_have_lost():
    """A secret that was told more segments ago than plain memories reach."""
    torch.manual_seed(0)
    task = toy_tasks.cross(4, segments=6, length=8)
    found = {}
    for name, flags in (('plain', {}), ('compressed', dict(cmem_len=24, cmem_ratio=2, cmem_init='mean'))):
        stack = Decoder(dim=48, depth=2, heads=4, attn_dim_head=12, rotary_pos_emb=True, verbose=False)
        sizes = dict(num_tokens=task.tokens, logits_dim=task.answers, max_seq_len=8, max_mem_len=8)
        net = TransformerWrapper(attn_layers=stack, use_abs_pos_emb=False, **sizes, **flags)
        found[name] = told(net, task)
    assert found['compressed'] > 0.6, found
    assert found['plain'] < 0.3, found


def read(net, x):
    """Logits of all segments, and what layers lose by what compresses."""
    mems, logits, lost = None, [], 0.0
    for segment in x.split(8, dim=1):
        out, trace = net(segment, mems=mems, return_mems=True, return_intermediates=True)
        logits, mems, lost = [*logits, out], trace.mems, lost + trace.aux_losses.get('cmem', 0.0)
    return torch.cat(logits, dim=1), lost


def told(net, task):
    def loss():
        x, y = task.draw(64)
        logits, lost = read(net, x)
        return F.cross_entropy(logits.transpose(1, 2), y, ignore_index=toy_tasks.IGNORED) + lost

    toy_tasks.taught(net.train(), loss, 150)
    x, y = task.draw(400)
    with torch.no_grad():
        found = read(net, x)[0].argmax(dim=-1)
    return (found == y)[y != toy_tasks.IGNORED].double().mean().item()
