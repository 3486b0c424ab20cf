"""Masked images: counts by hand, guidance and what is given, an exact sampler in random order, and two resolutions."""

import pytest
import torch
from oracles import assert_close, randn, randomised
from torch import nn
from toy_tasks import taught

from x_transformers import Encoder, Muse, NonAutoregressiveWrapper, TransformerWrapper
from x_transformers.flags import ConfigError
from x_transformers.generation.sampling import gumbel_noise

V, N, MASK = 9, 6, 8


def wrapped(around=(), n=N, **options):
    stack = Encoder(dim=16, depth=1, heads=2, attn_dim_head=8, cross_attend=True, cross_attn_dim_context=16)
    net = TransformerWrapper(**{**dict(num_tokens=V, max_seq_len=n, attn_layers=stack), **dict(around)})
    return randomised(NonAutoregressiveWrapper(net, mask_id=MASK, **{**dict(steps=4, schedule='cosine'), **options}))


TEXT = randn(3, 4, 16)


def seeded():
    torch.manual_seed(0)


def test_counts():
    """Of 16 tokens in 6 steps: rounded down as ever, rounded up as MaskGIT does; in the end none."""
    for ceil_counts, wanted in ((False, [15, 13, 11, 8, 4, 0]), (True, [16, 14, 12, 9, 5, 0])):
        made = wrapped(n=16, steps=6, ceil_counts=ceil_counts)
        counts = made.hidden_counts(torch.tensor([16]))[
            :, 0
        ].tolist()  # the fourth is 8 cos(pi / 3) and what rounding makes of it
        assert counts[:3] + counts[4:] == wanted[:3] + wanted[4:] and wanted[3] - counts[3] in (0, 1)
        found = made.hidden_counts(torch.tensor([16, 3, 0]))
        assert found[:, 0].tolist() == counts and found[-1].tolist() == [0, 0, 0]
        assert (found[:, 1] <= 3).all() and (found[:, 2] == 0).all()


@torch.no_grad()
def test_guidance_by_hand():
    """One step, greedy: the largest of u + scale (c - u), u without a text or with another one."""
    made = wrapped(steps=1, cond_drop_prob=0.5)
    ids = torch.full((3, N), MASK)
    with_text = made.net(ids, context=TEXT)
    options = dict(start_temperature=0.0, filter_thres=None)
    null = made.null_text.expand(3, 4, -1)
    for scale in (0.0, 1.0, 2.5):
        for negative in (None, randn(3, 2, 16, seed=7)):
            without = made.net(ids, context=null if negative is None else negative)
            wanted = without + scale * (with_text - without)
            wanted[..., MASK] = -torch.inf  # what is hidden is no answer
            wanted = wanted.argmax(dim=-1)
            found = made.generate(3, context=TEXT, cond_scale=scale, negative_context=negative, **options)
            assert torch.equal(found, wanted)
    assert not torch.equal(made.generate(3, context=TEXT, **options), made.generate(3, context=null, **options))
    # the scale grows to all of it at the last step, which is the only one here
    grown = made.generate(3, context=TEXT, cond_scale=2.5, cond_scale_grows=True, **options)
    assert torch.equal(grown, made.generate(3, context=TEXT, cond_scale=2.5, **options))


def test_rows_learn_without_their_text():
    made, x = wrapped(cond_drop_prob=1.0), torch.randint(0, 8, (3, N))
    mask = torch.tensor([[True, False, True, True], [False] * 4, [True] * 4])

    def loss(**inputs):
        seeded()
        return made(x, **inputs).loss

    null = made.null_text.expand(3, 4, -1)
    assert_close(loss(context=TEXT), loss(context=TEXT))
    assert not torch.allclose(loss(context=TEXT), loss(context=null))  # not in evaluation
    made.train()
    dropped = loss(context=TEXT, context_mask=mask)
    assert_close(dropped, loss(context=null))
    dropped.backward()
    assert made.null_text.grad.abs().sum() > 0
    some = wrapped(cond_drop_prob=0.3).train()
    gone = torch.rand(10_000, generator=torch.Generator().manual_seed(0)) < 0.3
    new = some.without_context(dict(context=TEXT[:1].expand(10_000, -1, -1)), gone)['context']
    assert torch.equal((new == some.null_text).all(dim=-1).all(dim=-1), gone)


def test_what_is_given_stays():
    """Of rows with different numbers of gaps; nothing that was there changes, whatever the order."""
    made = wrapped(steps=3)
    given = torch.randint(0, 8, (3, N))
    given[0, 1:4] = given[1, :] = MASK
    for options in ({}, dict(order='random'), dict(confidence_noise=2.0)):
        found = made.generate(given=given, context=TEXT, **options)
        assert torch.equal(found[given != MASK], given[given != MASK]) and not (found[2] == MASK).any()
        assert found.shape == (3, N) and torch.equal(found[2], given[2])
    again = wrapped(steps=3, can_mask_prev_unmasked=True)
    found = again.generate(given=given, context=TEXT)
    assert torch.equal(found[given != MASK], given[given != MASK])


class Known(nn.Module):
    """A net that knows a joint distribution of two tokens, and says what it leaves for each place."""

    num_tokens, emb_dim, dim, max_seq_len = 4, 4, 4, 2

    def __init__(self, joint):
        super().__init__()
        self.joint, self.own = joint, nn.Parameter(torch.zeros(1))

    def forward(self, ids, return_logits_and_embeddings=False):
        rows = []
        for first, second in ids.tolist():
            table = self.joint
            one = table.sum(dim=1) if second == 3 else table[:, second]
            two = table.sum(dim=0) if first == 3 else table[first]
            rows.append(torch.stack((one / one.sum(), two / two.sum())))
        logits = torch.cat((torch.stack(rows).log(), torch.full((len(ids), 2, 1), -torch.inf).double()), dim=-1)
        return logits, logits


@pytest.mark.costly
@pytest.mark.parametrize('order', ['random', 'confidence'])
def test_random_order_draws_exactly(order):
    """Pairs as often as the joint distribution says (chi squared, 8 degrees of freedom, 99.9 %: 26.1)."""
    joint = torch.tensor([[0.3, 0.02, 0.1], [0.05, 0.2, 0.03], [0.1, 0.15, 0.05]]).double()
    made = NonAutoregressiveWrapper(Known(joint), mask_id=3, steps=2)
    options = dict(filter_thres=None, anneal_temperature=False, generator=torch.Generator().manual_seed(0))
    found = made.generate(20_000, order=order, **options)
    counts = torch.bincount(found[:, 0] * 3 + found[:, 1], minlength=9).double()
    wanted = joint.flatten() * 20_000
    chi = ((counts - wanted) ** 2 / wanted).sum()
    assert (chi < 26.1) == (order == 'random'), chi


def test_confidence_with_noise():
    """log p + noise Gumbel: what is hidden again follows it."""
    logits, guessed = randn(1, N, V), torch.arange(N)[None]
    known = logits.log_softmax(dim=-1)[0, torch.arange(N), torch.arange(N)][None]
    found = NonAutoregressiveWrapper.doubts(logits, guessed, 1.5, torch.Generator().manual_seed(0))
    assert_close(found, -(known + 1.5 * gumbel_noise(known, torch.Generator().manual_seed(0))), tolerance=1e-12)
    assert_close(NonAutoregressiveWrapper.doubts(logits, guessed, 0.0, None), 1 - known.exp())


def test_two_resolutions_by_hand():
    base, large = wrapped(), wrapped(n=12, around=dict(max_seq_len=12))
    made, small, many = Muse(base, large), torch.randint(0, 8, (3, N)), torch.randint(0, 8, (3, 12))
    mask = torch.tensor([[True, True, False, True]] * 3)
    seeded()
    losses = made(small, TEXT, many, text_mask=mask)
    seeded()
    first = base(small, context=TEXT, context_mask=mask).loss
    context = torch.cat((TEXT, large.net.token_emb(small)), dim=1)
    second = large(many, context=context, context_mask=nn.functional.pad(mask, (0, N), value=True)).loss
    assert_close(losses.base, first), assert_close(losses.superres, second), assert_close(losses.loss, first + second)
    seeded()
    over = made(small, TEXT, many, text_mask=mask, num_items_in_batch=50)
    seeded()
    assert_close(over.base, base(small, context=TEXT, context_mask=mask, num_items_in_batch=50).loss)
    assert_close(over.loss, over.base + over.superres)
    assert over.superres < second
    assert made.generate(TEXT, mask).shape == (3, 12) and Muse(base).generate(TEXT).shape == (3, N)
    again = Muse.from_config(made.config).double().eval()
    again.load_state_dict(made.state_dict())
    drawn = [one.generate(TEXT, generator=torch.Generator().manual_seed(1)) for one in (made, again)]
    assert torch.equal(*drawn)


@pytest.mark.nightly
def test_stripes_of_a_class():
    """Images of 4 x 4 in stripes of one of four colours, along rows or columns: the class decides, in 8 steps."""
    torch.manual_seed(0)

    def drawn(b):
        colour, down = torch.randint(0, 4, (b,)), torch.randint(0, 2, (b,))
        stripes = (torch.arange(4) % 2)[:, None].expand(4, 4)
        image = torch.where(down.bool()[:, None, None], stripes.mT, stripes) * (1 + colour[:, None, None])
        return image.flatten(1), colour * 2 + down

    stack = Encoder(dim=48, depth=2, heads=4, attn_dim_head=12, cross_attend=True, cross_attn_dim_context=16)
    net = TransformerWrapper(num_tokens=6, max_seq_len=16, attn_layers=stack)
    model = Muse(
        NonAutoregressiveWrapper(net, mask_id=5, steps=8, schedule='cosine', cond_drop_prob=0.1, ceil_counts=True)
    )
    table = nn.Embedding(8, 16)
    both = nn.ModuleList((model, table))

    def loss():
        x, y = drawn(64)
        return model(x, table(y)[:, None]).loss

    taught(both, loss, 400)
    x, y = drawn(200)
    with torch.no_grad():
        found = model.generate(table(y)[:, None], cond_scale=2.0, generator=torch.Generator().manual_seed(0))
    assert (found == x).all(dim=-1).double().mean() >= 0.9


@pytest.mark.parametrize(
    ('call', 'words'),
    [
        (lambda: wrapped(cond_drop_prob=2), '`cond_drop_prob` must be a probability from 0 to 1, got 2'),
        (lambda: NonAutoregressiveWrapper(TransformerWrapper(
            num_tokens=V, max_seq_len=N, attn_layers=Encoder(dim=8, depth=1, heads=1)), mask_id=8, cond_drop_prob=0.1),
         '`cond_drop_prob` needs a net that reads a context'),
        (lambda: wrapped().generate(3, context=TEXT, cond_scale=2.0), 'has not learned without a context'),
        (lambda: wrapped(cond_drop_prob=0.1).generate(3, cond_scale=2.0), '`cond_scale` got 2.0, which needs'),
        (lambda: wrapped().generate(3, context=TEXT, cond_scale=-1.0), r'`cond_scale` must .*got -1.0'),
        (lambda: wrapped().generate(3, context=TEXT, order='left'), r"`order` must be one.*got 'left'"),
        (lambda: wrapped().generate(3, context=TEXT, confidence_noise=-1), r'`confidence_noise` must .*got -1'),
        (lambda: wrapped().generate(3, context=TEXT, given=torch.zeros(3, N).long()), 'cannot be .*with `given`'),
        (lambda: wrapped().generate(context=TEXT, given=torch.full((3, N), V)), '`given` must '),
        (lambda: wrapped().generate(context=TEXT, given=torch.zeros(3, N + 1).long()), r'`given` must .*got 7'),
        (lambda: Muse(wrapped())(torch.zeros(3, N).long(), TEXT, torch.zeros(3, N).long()), '`large` was given'),
        (lambda: Muse(wrapped(), wrapped())(torch.zeros(3, N).long(), TEXT), '`large` is missing'),
        (lambda: Muse(wrapped())(torch.zeros(3, N).long(), TEXT[..., 1:]), '`text` must '),
        (lambda: Muse(wrapped(), wrapped(around=dict(emb_dim=8))), '`superres` embeds tokens with a width of 8'),
        (lambda: Muse(wrapped(around=dict(num_tokens=20)), wrapped()), '`superres` knows 9 tokens, fewer than'),
    ],
)  # fmt: skip
def test_refused(call, words):
    with pytest.raises((ConfigError, ValueError, TypeError), match=words):
        call()
