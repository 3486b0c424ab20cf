"""Prefix language models: the loss of what stands behind the prefix, by hand, and a text read backwards."""

import pytest
import torch
import torch.nn.functional as F
from oracles import assert_close, randomised
from toy_tasks import SEEDS, taught

from x_transformers import AutoregressiveWrapper, Decoder, PrefixDecoder, TransformerWrapper

V, N = 11, 9
IDS = torch.randint(0, V, (3, N), generator=torch.Generator().manual_seed(0))
PREFIXES = torch.tensor([2, 5, 8])


def model(kind=PrefixDecoder, around=None, **options):
    layers = kind(dim=16, depth=2, heads=2, attn_dim_head=8)
    net = TransformerWrapper(num_tokens=V, max_seq_len=N, attn_layers=layers, **(around or {}))
    return randomised(AutoregressiveWrapper(net, **options))


def by_hand(made, ids, prefixes, lens=None):
    """One row at a time, without padding: the mean over the tokens of all suffixes."""
    total, count = 0.0, 0
    for row, prefix, length in zip(ids, prefixes, lens or [ids.shape[1]] * len(ids), strict=True):
        row = row[:length]
        logits = made.net(row[None], prefix_attn_len=int(prefix))[0]
        for at in range(max(int(prefix), 1), length):
            total, count = total - logits[at - 1].log_softmax(dim=-1)[row[at]], count + 1
    return total / count


def test_the_loss_is_that_of_the_suffix():
    """With and without the logits at once; and not that of all tokens, which leaks."""
    made = model()
    wanted = by_hand(made, IDS, PREFIXES)
    assert_close(made(IDS, prefix_attn_len=PREFIXES), wanted)
    assert_close(made(IDS, prefix_attn_len=PREFIXES, return_outputs=True)[0], wanted)
    assert_close(made(IDS, prefix_attn_len=4), by_hand(made, IDS, [4] * 3))
    leaky = F.cross_entropy(made.net(IDS, prefix_attn_len=PREFIXES)[:, :-1].transpose(1, 2), IDS[:, 1:])
    assert (leaky - wanted).abs() > 1e-3
    causal = model(Decoder)
    for none in (0, 1):
        assert_close(made(IDS, prefix_attn_len=none), causal(IDS))


def test_lengths_labels_and_tokens_in_front():
    made, lens = model(around=dict(num_memory_tokens=2)), torch.tensor([5, 9, 9])
    wanted = by_hand(made, IDS, PREFIXES, lens.tolist())
    assert_close(made(IDS, lens=lens, prefix_attn_len=PREFIXES), wanted)
    labels = IDS.clone()
    labels[1:] = -100
    assert_close(made(IDS, labels=labels, prefix_attn_len=PREFIXES), by_hand(made, IDS[:1], PREFIXES[:1]))
    # the prefix is that of tokens: the first of them sees the last one of it, and none behind
    ids = IDS[:1].clone()
    before = made.net(ids, prefix_attn_len=4)[0, 0]
    for at, seen in ((3, True), (4, False)):
        other = ids.clone()
        other[0, at] = (ids[0, at] + 1) % V
        assert torch.equal(made.net(other, prefix_attn_len=4)[0, 0], before) != seen


def test_what_the_prefix_says_does_not_depend_on_the_suffix():
    made = model()
    table = made.net.token_emb.emb.weight

    def seen(at):
        embeds = table[IDS[:1]].detach().requires_grad_()
        out = made.net.attn_layers(embeds, prefix_attn_len=4)[0, at].sum()
        return torch.autograd.grad(out, embeds)[0][0].abs().sum(dim=-1) > 0

    assert [seen(at).sum().item() for at in range(N)] == [4, 4, 4, 4, 5, 6, 7, 8, 9]


def test_random_prefixes():
    """Drawn for each row, from 1 to the last but one of its tokens, all alike."""
    made, found, ids = model(), [], IDS[:, :5].repeat(400, 1)
    made.net.forward = lambda x, prefix_attn_len, **_: (found.append(prefix_attn_len), torch.zeros(*x.shape, V))[1]
    torch.manual_seed(0)
    made(ids, prefix_attn_len='random')
    made(ids, prefix_attn_len='random', lens=torch.tensor([3, 5, 2]).repeat(400))
    assert (found[0].bincount(minlength=5) - torch.tensor([0, 300, 300, 300, 300])).abs().max() < 4 * 15
    assert [row.unique().tolist() for row in found[1].view(400, 3).T] == [[1, 2], [1, 2, 3, 4], [1]]


@pytest.mark.parametrize('build, words', [
    (lambda: model()(IDS, prefix_attn_len=N + 1), '`prefix_attn_len` must be an integer from 0 to 9.*got 10'),
    (lambda: model()(IDS, prefix_attn_len=N), 'leaves a row without a token'),
    (lambda: model()(IDS, prefix_attn_len=PREFIXES, lens=PREFIXES), 'leaves a row without a token'),
    (lambda: model()(IDS, prefix_attn_len=PREFIXES[:2]), '`prefix_attn_len` must '),
    (lambda: model()(IDS, prefix_attn_len='some'), r"`prefix_attn_len` must .*got 'some'"),
    (lambda: model(Decoder)(IDS, prefix_attn_len=3), '`prefix_attn_len` needs a PrefixDecoder'),
    (lambda: model()(IDS, prefix_attn_len=3, document_ids=IDS), '`document_ids`'),
])  # fmt: skip
def test_refusals(build, words):
    with pytest.raises(ValueError, match=words):
        build()


@pytest.mark.slow
@SEEDS
def test_a_prefix_is_read_backwards(seed):
    torch.manual_seed(seed)
    layers = PrefixDecoder(dim=32, depth=2, heads=4, attn_dim_head=8)
    made = AutoregressiveWrapper(TransformerWrapper(num_tokens=8, max_seq_len=12, attn_layers=layers))

    def draw(b):
        prefix = torch.randint(0, 8, (b, 6))
        return torch.cat((prefix, prefix.flip(1)), dim=1)

    taught(made, lambda: made(draw(64), prefix_attn_len=6), 300)
    ids = draw(200)
    with torch.no_grad():
        found = made.net(ids, prefix_attn_len=6)[:, 5:-1].argmax(dim=-1)
    assert (found == ids[:, 6:]).double().mean() > 0.95
