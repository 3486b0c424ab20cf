"""Sparse Sinkhorn attention: the formula in loops, permutations of blocks, states, noise, costs."""

import copy

import pytest
import torch
from costs import grows
from law_cases import randomise
from oracles import assert_close, randn, sinkhorn, sinkhorn_attention
from toy_tasks import SEEDS, copy as copying, learned, net_for

from x_transformers import Attention, Decoder, Encoder, TransformerWrapper
from x_transformers.features.clusters.sinkhorn import balance_scores
from x_transformers.features.recompute import Reversible
from x_transformers.flags import ConfigError

N, C, TIGHT = 13, 3, 1e-12
NET = dict(sinkhorn_sort='net', cluster_blocks=6)
BELOW = torch.ones(6, 6, dtype=torch.bool).tril(-1)


def layer(causal=True, **flags):
    torch.manual_seed(0)
    sizes = dict(heads=2, dim_head=6, value_dim_head=5, kv_heads=1, causal=causal)
    attn = Attention(16, **sizes, cluster='sinkhorn', cluster_size=C, sinkhorn_iters=3, **flags)
    return randomise(attn.double(), scale=0.6)


def by_loops(attn, x, causal, mask=None, **given):
    rows = [None] * len(x) if mask is None else mask.tolist()
    return torch.stack(
        [sinkhorn_attention(attn, t, C, 3, 0.75, causal, real=r, **given) for t, r in zip(x, rows, strict=True)]
    )


HOLES = torch.ones(2, N, dtype=torch.bool)
HOLES[0, [2, 6, 7, 8, 12]] = HOLES[1, [1, 10, 11, 12]] = False  # a whole block among them


@pytest.mark.parametrize(
    ('causal', 'flags'),
    [
        (True, {}),
        (False, NET),
        (False, dict(sortcut=2)),
        *(pytest.param(*case, marks=pytest.mark.nightly) for case in ((False, {}), (True, NET))),
    ],
    ids=str,
)
def test_formula(causal, flags):
    """Of a length that no block divides, with and without padding, and the gradients."""
    attn, x = layer(causal, **flags), randn(2, N, 16).requires_grad_()
    given = {n: v for n, v in flags.items() if n == 'sortcut'}
    for mask in (None, HOLES):
        real = HOLES if mask is not None else torch.ones_like(HOLES)
        ours, loops = attn(x, mask=mask), by_loops(attn, x, causal, mask, **given)
        assert_close(ours[real], loops[real], tolerance=TIGHT)
    leaves = [x, *(p for n, p in attn.named_parameters() if 'sort.2.bias' not in n)]
    found, wanted = (torch.autograd.grad(t[real].sin().sum(), leaves) for t in (ours, loops))
    for one, other in zip(found, wanted, strict=True):
        assert_close(one, other, 'gradient', tolerance=1e-10)


# S


def test_what_follows_changes_no_row():
    """Only the last block of six is another: no row that came before may know."""
    logits = randn(1, 2, 6, 6)
    other = logits.clone()
    other[:, :, 5] = randn(2, 6) * 2 + 1
    s, _ = balance_scores(logits, BELOW, 8, True)
    t, _ = balance_scores(other, BELOW, 8, True)
    assert torch.equal(s[:, :, :5], t[:, :, :5]) and not torch.allclose(s[:, :, 5], t[:, :, 5])
    assert_close(s.sum(dim=-1)[:, :, 1:], torch.ones(1, 2, 5, dtype=s.dtype), tolerance=TIGHT)
    assert (s[:, :, ~BELOW] == 0).all()
    for h in range(2):
        assert_close(s[0, h], sinkhorn(logits[0, h], 8, True), tolerance=TIGHT)
    far = logits.float() * 60  # products of these would be none
    assert balance_scores(far, BELOW, 8, True)[0].isfinite().all()


def test_doubly_stochastic():
    s, _ = balance_scores(randn(1, 2, 6, 6), None, 8, False)
    for axis in (-1, -2):
        assert_close(s.sum(dim=axis), torch.ones(1, 2, 6, dtype=s.dtype), tolerance=1e-3)
    assert_close(s[0, 1], sinkhorn(randn(1, 2, 6, 6)[0, 1], 8, False), tolerance=TIGHT)


def dense(attn, x, sees):
    """Attention in which a query sees each key so many times, n n."""
    q, k, v = (t(x).unflatten(-1, (-1, e)).transpose(1, 2) for t, e in ((attn.to_q, 6), (attn.to_k, 6), (attn.to_v, 5)))
    scores = q @ k.expand(-1, 2, -1, -1).mT * attn.scale + sees.log()
    return attn.to_out((scores.softmax(dim=-1) @ v.expand(-1, 2, -1, -1)).transpose(1, 2).flatten(2))


@pytest.mark.parametrize('order', [(2, 0, 3, 1), (0, 1, 2, 3)], ids=str)
def test_permutations(order, monkeypatch):
    """Scores that leave one block each: that and its own. Where it is its own, all keys are there twice."""
    attn, x, move = layer(False), randn(2, 12, 16), torch.eye(4, dtype=torch.float64)[list(order)]
    logits = (500 * move).expand(2, 2, 4, 4)
    module = 'x_transformers.features.clusters.sinkhorn'
    monkeypatch.setattr(f'{module}.balance_scores', lambda _, *rest: balance_scores(logits, *rest))
    sees = (move + torch.eye(4)).repeat_interleave(3, 0).repeat_interleave(3, 1)
    assert_close(attn(x), dense(attn, x, sees), tolerance=TIGHT)
    if order == (0, 1, 2, 3):
        assert_close(attn(x), dense(attn, x, sees.clamp(max=1)), tolerance=TIGHT)


@pytest.mark.parametrize('causal', [True, False])
def test_linear_in_values(causal):
    attn, x = layer(causal), randn(2, N, 16)
    out = attn(x)
    with torch.no_grad():
        attn.to_v.weight.mul_(2.0)
        assert_close(attn(x), 2 * out, tolerance=TIGHT)
        attn.to_v.weight.zero_()
        assert (attn(x) == 0).all()


# one token after the other


@pytest.mark.parametrize('flags', [{}, NET], ids=str)
def test_no_token_sees_a_later_one(flags):
    attn, x = layer(**flags), randn(1, 8, 16).requires_grad_()
    out = attn(x).sum(dim=(0, 2))
    for t in range(8):
        (grad,) = torch.autograd.grad(out[t], x, retain_graph=True)
        assert (grad[0, t + 1 :] == 0).all() and (grad[0, t] != 0).all()


def decoded(net, x, sizes, **options):
    outs, trace, start = [], None, 0
    for size in sizes:
        given = {n: t[:, : start + size] if n == 'mask' else t for n, t in options.items()}
        part = x[:, start : start + size]
        out, trace = net(part, cache=trace, return_hiddens=True, input_not_include_cache=True, **given)
        outs.append(out)
        start += size
    return torch.cat(outs, dim=1), trace


@torch.no_grad()
@pytest.mark.parametrize('flags', [{}, NET], ids=str)
def test_prompts_of_every_length(flags):
    """Then one by one; with padding on the left too, where each row has blocks of its own."""
    flags = {f'attn_{n}': v for n, v in flags.items()}
    net = Decoder(dim=16, depth=1, heads=2, attn_dim_head=8, attn_cluster='sinkhorn', attn_cluster_size=C, **flags)
    net, x, start = randomise(net.double()), randn(2, N, 16), torch.tensor([0, 4])
    wanted, shifted = net(x), net(x, seq_start_pos=start)
    assert_close(shifted[1, 4:], net(x[1:, 4:])[0], tolerance=TIGHT)
    for prompt in (1, 2, 3, 5, 6, 12):
        for sizes in ((prompt, *(1,) * (N - prompt)), (prompt, N - prompt)):
            assert_close(decoded(net, x, sizes)[0], wanted, f'{sizes}', tolerance=TIGHT)
        if prompt in (2, 6):
            assert_close(decoded(net, x, sizes, seq_start_pos=start)[0][1, 4:], shifted[1, 4:], tolerance=TIGHT)


@torch.no_grad()
def test_state():
    """Its size does not grow with the tokens but by the sums of a column for each block; where the last call began it
    can be taken back to, nowhere else."""
    net = Decoder(dim=16, depth=1, heads=2, attn_dim_head=8, attn_cluster='sinkhorn', attn_cluster_size=C)
    net, x = randomise(net.double()), randn(2, N, 16)
    _, trace = decoded(net, x, (7, 3))
    sums, *others = trace.cache.layers[0].states['sinkhorn'].value
    assert sums.shape == (2, 2, 8, 3) and sum(t.numel() for t in others) == 2 * (16 + 16 + 1 + 2 * 2 * C * 8)
    out, _ = net(x[:, 7:], cache=trace.cache.crop(7), return_hiddens=True, input_not_include_cache=True)
    assert_close(out, net(x)[:, 7:], tolerance=TIGHT)
    with pytest.raises(ValueError, match='sinkhorn'):
        trace.cache.crop(5)


# noise


@pytest.mark.parametrize(
    'keeping', [dict(reversible=True), pytest.param(dict(checkpoint_layers=True), marks=pytest.mark.slow)], ids=str
)
def test_noise_is_drawn_again(keeping, monkeypatch):
    """What is computed again in the backward pass is sorted as it was; evaluation draws nothing."""
    grads, x = [], randn(2, N, 16)
    for again in (True, False):
        if not again:
            monkeypatch.setattr(Reversible, 'saves', lambda *_: False)
            keeping = {n: v for n, v in keeping.items() if n == 'reversible'}
        net = Decoder(
            dim=16, depth=2, heads=2, attn_dim_head=8, attn_cluster='sinkhorn', attn_cluster_size=C, **keeping
        )
        net = randomise(net.double()).train()
        torch.manual_seed(1)
        out = net(x)
        grads.append([out.detach(), *torch.autograd.grad(out.sin().sum(), [*net.parameters()])])
    for one, other in zip(*grads, strict=True):
        assert_close(one, other, tolerance=1e-10)
    assert not torch.allclose(net(x), out) and torch.equal(net.eval()(x), net(x))


def test_shapes_without_memory():
    """On the meta device, which knows no autocast; and of no tokens, and no rows."""
    for causal in (True, False):
        attn = layer(causal).float()
        x = torch.randn(2, N, 16)
        assert copy.deepcopy(attn).to('meta')(x.to('meta'), mask=HOLES.to('meta')).shape == x.shape
        assert attn(x[:, :0]).shape == (2, 0, 16) and attn(x[:0], mask=HOLES[:0]).shape == (0, N, 16)


# costs, refusals


@pytest.mark.parametrize('causal', [True, False])
def test_costs(causal):
    """Linear but for the mixes of blocks, which are a hundredth of all products of queries and keys."""
    attn = Attention(16, heads=2, dim_head=8, causal=causal, cluster='sinkhorn', cluster_size=64)
    grows(lambda n: attn(torch.randn(1, n, 16)), 640, 2, time=2.3)


WORDS = {
    'sortcut': (
        dict(attn_sortcut=2),
        '`attn_sortcut` cannot be combined with `causal`: sorted blocks hold later tokens',
    ),
    'net': (dict(attn_sinkhorn_sort='net'), "`attn_sinkhorn_sort='net'` needs `attn_cluster_blocks`"),
    'alibi': (
        dict(alibi_pos_bias=True),
        '`attn_cluster` cannot be combined with `alibi_pos_bias`: mixed keys have no position',
    ),
    'window': (
        dict(attn_max_attend_past=3),
        '`attn_cluster` cannot be combined with `attn_max_attend_past`: mixed keys have',
    ),
    'memories': (dict(attn_num_mem_kv=1), '`attn_cluster` cannot be combined with `attn_num_mem_kv`: prepended keys'),
    'dropout': (
        dict(attn_dropout=0.1),
        '`attn_cluster` cannot be combined with `attn_dropout`: it forms no attention weights',
    ),
    'temperature': (dict(attn_sinkhorn_temp=0.0), '`attn_sinkhorn_temp` must be a positive number, got 0.0'),
}


@pytest.mark.parametrize('name', WORDS)
def test_refusals(name):
    flags, words = WORDS[name]
    with pytest.raises(ConfigError) as error:
        Decoder(dim=16, depth=1, attn_cluster='sinkhorn', **flags)
    assert str(error.value).startswith(words)


def test_refusals_of_calls():
    attn = Attention(16, causal=True, cluster='sinkhorn', cluster_size=C, **{**NET, 'cluster_blocks': 2})
    with pytest.raises(
        ValueError, match='`cluster` cannot be combined with 7 tokens: `cluster_blocks` of 3 tokens hold 6'
    ):
        attn(torch.zeros(1, 7, 16))
    with pytest.raises(ValueError, match='it hides no keys but from all queries alike'):
        attn(torch.zeros(1, 4, 16), attn_mask=torch.ones(4, 4, dtype=torch.bool))
    net = TransformerWrapper(
        num_tokens=5, max_seq_len=8, attn_layers=Encoder(dim=16, depth=1, attn_cluster='sinkhorn', verbose=False)
    )
    with pytest.raises(ValueError, match='blocks of tokens are mixed'):
        net(torch.zeros(1, 4, dtype=torch.long), document_ids=torch.zeros(1, 4, dtype=torch.long))


@pytest.mark.nightly
@SEEDS
def test_a_word_is_copied_from_far_blocks(seed):
    """No token of a word is nearer than two blocks to where it stands again."""
    torch.manual_seed(seed)
    task = copying(32)
    net = net_for(task, Decoder, attn_cluster='sinkhorn', attn_cluster_size=8)
    assert learned(net, task, steps=600) > 0.9
