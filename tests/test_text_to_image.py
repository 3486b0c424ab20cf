"""Images as words: both models by hand, guidance, what is given stays, and patterns that are named learned."""

import pytest
import torch
import torch.nn.functional as F
from oracles import assert_close, randn, randomised
from torch import nn
from toy_tasks import taught

from x_transformers import DALLE, Decoder, Encoder, Parti
from x_transformers.flags import ConfigError
from x_transformers.modalities.dalle import dalle_patterns, get_best
from x_transformers.patterns import as_pattern

WORDS, LONG, TOKENS, GRID = 10, 5, 7, 3
PLACES = GRID**2
TEXT = torch.tensor([[1, 2, 3], [9, 0, 4]])
IMAGE = torch.randint(0, TOKENS, (2, PLACES), generator=torch.Generator().manual_seed(0))
MASK = torch.tensor([[True] * 3, [True, False, False]])


def one_stream(**options):
    sizes = dict(num_text_tokens=WORDS, text_seq_len=LONG, num_image_tokens=TOKENS, image_grid=GRID, heads=2)
    sizes = {**sizes, **options}
    return randomised(DALLE(16, 2, **sizes) if 'attn_layers' not in options else DALLE(**sizes))


def two_stacks(**options):
    sizes = dict(text_tokens=WORDS, text_len=LONG, image_tokens=TOKENS, grid=GRID, enc_heads=2, dec_heads=2)
    return randomised(Parti(16, 1, 2, **{**sizes, **options}))


# one stream


def test_short_texts_are_filled_up_by_ids_of_their_own():
    model = one_stream()
    begin, fill = 15, [10, 11, 12, 13, 14]
    assert model.padded(TEXT).tolist() == [[begin, 1, 2, 3, 13, 14], [begin, 9, 0, 4, 13, 14]]
    assert model.padded(TEXT, MASK).tolist() == [[begin, 1, 2, 3, 13, 14], [begin, 9, 11, 12, 13, 14]]
    assert model.no_text(2, TEXT.device).tolist() == [[begin, *fill]] * 2
    assert_close(model.eval()(TEXT, IMAGE, MASK)[0], model(TEXT * MASK, IMAGE, MASK)[0])


@torch.no_grad()
def test_vectors_by_hand():
    model = one_stream()
    ids, wanted = torch.cat((model.padded(TEXT), IMAGE), dim=1), []
    for place in range(1 + LONG + PLACES):
        at = place - 1 - LONG
        if at < 0:
            wanted.append(model.text_emb.weight[ids[:, place]] + model.text_pos.weight[place])
        else:
            where = model.image_row_pos.weight[at // GRID] + model.image_col_pos.weight[at % GRID]
            wanted.append(model.image_emb.weight[ids[:, place]] + where)
    wanted = torch.stack(wanted, dim=1)
    assert_close(model.embedded(ids), wanted)
    for start in (1, LONG, LONG + 1, LONG + 3):  # as a cache goes on
        for stop in (start + 1, wanted.shape[1]):
            assert_close(model.embedded(ids[:, start:stop], start), wanted[:, start:stop])


def test_the_loss_by_hand():
    model = one_stream(image_loss_weight=3.0, cond_drop_prob=0.5).eval()
    logits = model.logits(TEXT, IMAGE)
    words = logits.softmax(dim=-1)
    assert logits.shape == (2, LONG + PLACES, WORDS + LONG + TOKENS)
    assert (words[:, :LONG, WORDS + LONG :] == 0).all() and (words[:, LONG:, : WORDS + LONG] == 0).all()
    x = model.embedded(torch.cat((model.padded(TEXT), IMAGE[:, :-1]), dim=1))
    raw = model.to_logits(model.attn_layers(x))
    assert_close(logits[:, :LONG, : WORDS + LONG], raw[:, :LONG, : WORDS + LONG])
    targets = torch.cat((model.padded(TEXT)[:, 1:], IMAGE + WORDS + LONG), dim=1)
    each = -words.log().gather(-1, targets.unsqueeze(-1)).squeeze(-1)
    found = model(TEXT, IMAGE)
    assert_close(found.text, each[:, :LONG].mean())
    assert_close(found.image, each[:, LONG:].mean())
    assert_close(found.loss, (found.text + 3 * found.image) / 4)
    assert_close(model(TEXT, IMAGE.view(2, GRID, GRID)).loss, found.loss)


def test_nothing_sees_what_comes_later():
    for attn in ('full', 'dalle'):
        model = one_stream(attn=attn).eval()
        x = model.embedded(torch.cat((model.padded(TEXT), IMAGE), dim=1)).detach().requires_grad_()
        out = model.attn_layers(x)
        for place in (2, LONG, LONG + 4):
            (seen,) = torch.autograd.grad(out[:, place].sum(), x, retain_graph=True)
            assert (seen[:, place + 1 :] == 0).all() and (seen[:, place] != 0).any()


def test_the_layers_of_rows_columns_and_squares():
    depth, first, i = 7, LONG + 1, torch.arange(LONG + 1 + 16)
    own = (i - first).clamp(min=0)
    row, column, text = own // 4, own % 4, i < first
    i, text = i[:, None], text[:, None] | text
    past, both = i >= i.T, ~text
    rows = (row[:, None] == row) & past & both
    columns = (column[:, None] == column) & past & both
    squares = ((row[:, None] - row).abs() <= 1) & ((column[:, None] - column).abs() <= 1) & past & both
    wanted = [rows, columns, rows, rows, rows, columns, squares]
    made = dalle_patterns(depth, LONG, 4, kernel=3)
    assert len(made) == depth
    for one, seen in zip(made, wanted, strict=True):
        assert torch.equal(one.visible(i, i.T) & past, (seen | text) & past)
    model = one_stream(attn='dalle')
    held = model.attn_layers.config['attn_sparse_pattern']
    assert list(map(as_pattern, held)) == list(dalle_patterns(2, LONG, GRID))


def drawn(model, text, image_of, scale, count=PLACES, begun=()):
    """The greedy image of one text, from whole sequences each time."""
    tokens = list(begun)
    while len(tokens) < count:
        so_far = torch.tensor([tokens + [0] * (count - len(tokens))])
        c, u = (image_of(model, own, so_far)[0, len(tokens)] for own in text)
        tokens.append(int((u + scale * (c - u)).argmax()))
    return tokens


def of_stream(model, text, image):
    return model.scores(text, image)[1]


@pytest.mark.costly
@pytest.mark.parametrize('attn', ['full', 'dalle'])
@torch.no_grad()
def test_images_by_hand(attn):
    model = one_stream(attn=attn, cond_drop_prob=0.5).eval()
    greedy, nothing, other = dict(temperature=0.0), model.no_text(1, TEXT.device), torch.tensor([[5, 5], [1, 1]])
    for scale in (0.0, 1.0, 2.5):
        found, led = (model.generate(TEXT, MASK, scale, negative_text=against, **greedy) for against in (None, other))
        for row in (0, 1):
            text = model.padded(TEXT, MASK)[row : row + 1]
            assert found[row].tolist() == drawn(model, (text, nothing), of_stream, scale)
            against = model.padded(other)[row : row + 1]
            assert led[row].tolist() == drawn(model, (text, against), of_stream, scale)
        assert torch.equal(found, model.generate(TEXT, MASK, scale, cache_kv=False, **greedy))
    prime = IMAGE[:, :4]
    found = model.generate(TEXT, cond_scale=2.0, prime=prime, **greedy)
    assert torch.equal(found[:, :4], prime)
    text = model.padded(TEXT)[:1]
    assert found[0].tolist() == drawn(model, (text, nothing), of_stream, 2.0, begun=prime[0].tolist())
    assert torch.equal(model.generate(TEXT, prime=IMAGE), IMAGE)


def check_samples_and_their_order(model):
    model.eval()
    wide = dict(filter_logits_fn=lambda logits: logits)
    draws = lambda **options: model.generate(TEXT, generator=torch.Generator().manual_seed(0), **{**wide, **options})  # noqa: E731
    several = draws(num_samples=5, prime=IMAGE[:, :2])
    assert several.shape == (2, 5, PLACES) and len(several[0].unique(dim=0)) > 1
    assert (several[..., :2] == IMAGE[:, None, :2]).all() and (several < TOKENS).all()
    best = draws(num_samples=5, prime=IMAGE[:, :2], rerank=lambda images: -images.sum(dim=-1).double())
    assert torch.equal(best, several[torch.arange(2), several.sum(dim=-1).argmin(dim=1)])
    for options, words in (
        (dict(num_samples=0), r'`num_samples` must .*got 0'),
        (dict(rerank=len), '`rerank` needs `num_samples`'),
        (dict(num_samples=2, rerank=len), '`rerank` gave int, it must give one score for each image'),
        (dict(num_samples=2, rerank=lambda images: images.sum(dim=-1)[:1]), r'`rerank` gave \(1, 2\)'),
        (dict(prime=torch.zeros(2, PLACES + 1).long()), r'`prime` must have 2 rows of at most 9 tokens'),
        (dict(prime=torch.zeros(3, 1).long()), r'`prime` must have 2 rows of at most 9 tokens'),
        (dict(prime=torch.full((2, 1), TOKENS)), '`prime` must be from'),
        (dict(cond_scale=-1.0), '`cond_scale`'),
    ):
        with pytest.raises(ValueError, match=words):
            draws(**options)


def test_samples():
    check_samples_and_their_order(one_stream(cond_drop_prob=0.1))
    check_samples_and_their_order(two_stacks())
    assert get_best(IMAGE, None) is IMAGE


@pytest.mark.costly
def test_images_learn_without_their_text():
    """So often as asked, in training alone."""
    model = one_stream(cond_drop_prob=0.3).train()
    seen = []
    model.text_emb.register_forward_hook(lambda module, inputs, out: seen.append(inputs[0]))
    text, image = TEXT[:1].expand(3000, -1), IMAGE[:1].expand(3000, -1)
    model(text, image)
    model.eval()(text, image)
    shares = [(ids[:, 1] == WORDS).double().mean().item() for ids in seen]
    assert shares[1] == 0 and abs(shares[0] - 0.3) < 4 * (0.21 / 3000) ** 0.5
    gone = torch.where(seen[0][:, 1:2] == WORDS, model.no_text(1, text.device), model.padded(text))
    assert torch.equal(seen[0], gone)

    model = two_stacks(cond_drop_prob=0.3)
    made = model.train().dropped(model.encode(text, MASK[1:].expand(3000, -1)))
    gone = (made['context'] == model.null_text).all(dim=-1).all(dim=-1)
    assert abs(gone.double().mean().item() - 0.3) < 4 * (0.21 / 3000) ** 0.5
    assert made['context_mask'][gone].all() and (made['context_mask'][~gone].sum(dim=1) == 1).all()
    plain = model.encode(text, None)
    assert model.eval().dropped(plain) is plain
    model.train()(text, image).backward()
    assert model.null_text.grad.abs().sum() > 0


class Halves(nn.Module):
    """Images of two levels, of which each is a token."""

    def __init__(self):
        super().__init__()
        self.level = nn.Parameter(torch.tensor(0.5, dtype=torch.float64))

    def encode(self, images):
        return (images[:, 0] > self.level).long() * 3

    def decode(self, ids):
        return (ids.view(-1, 1, GRID, GRID) == 3).double() * self.level * 2


def test_a_tokenizer_makes_images():
    model = one_stream(tokenizer=Halves()).eval()
    nn.init.constant_(model.tokenizer.level, 0.5)
    images = (randn(2, 1, GRID, GRID) > 0).double()
    ids = model.image_ids(images)
    assert torch.equal(ids, images.flatten(1).long() * 3) and torch.equal(model.decode(ids), images)
    model(TEXT, images).loss.backward()
    assert_close(model(TEXT, images).loss, model(TEXT, ids).loss)
    assert model.tokenizer.level.grad is None


# two stacks


def of_stacks(model, given, image):
    start = F.pad(image[:, :-1], (1, 0), value=TOKENS)
    return model.decoder.net(start, **given)


@torch.no_grad()
def test_the_context_and_its_loss_by_hand():
    model = two_stacks().eval()
    given = model.encode(TEXT, MASK)
    for row, m in ((0, 3), (1, 1)):
        assert_close(given['context'][row, :m], model.encoder(TEXT[row : row + 1, :m])[0])
        assert given['context_mask'][row].tolist() == [True] * m + [False] * (LONG - m)
    wanted = F.cross_entropy(of_stacks(model, given, IMAGE).flatten(0, 1), IMAGE.flatten())
    assert_close(model(TEXT, IMAGE, MASK), wanted)
    assert_close(model(TEXT, IMAGE.view(2, GRID, GRID), MASK), wanted)
    alone = [model(TEXT[r : r + 1, :m], IMAGE[r : r + 1]) for r, m in ((0, 3), (1, 1))]
    assert_close(sum(alone) / 2, wanted)
    smooth = two_stacks(label_smoothing=0.2).eval()
    wanted = F.cross_entropy(of_stacks(smooth, smooth.encode(TEXT, None), IMAGE).mT, IMAGE, label_smoothing=0.2)
    assert_close(smooth(TEXT, IMAGE), wanted)


@pytest.mark.costly
@torch.no_grad()
def test_images_of_two_stacks_by_hand():
    model, runs = two_stacks(guidance=2.5).eval(), []
    model.encoder.register_forward_hook(lambda *_: runs.append(0))
    null = dict(context=model.null_text.unsqueeze(0))
    other = torch.tensor([[5, 5], [1, 1]])
    for scale in (0.0, 1.0, 2.5):
        runs.clear()
        found = model.generate(TEXT, MASK, scale, temperature=0.0)
        assert len(runs) == 1
        led = model.generate(TEXT, MASK, scale, negative_text=other, temperature=0.0)
        for row, m in ((0, 3), (1, 1)):
            own = dict(context=model.encoder(TEXT[row : row + 1, :m]))
            assert found[row].tolist() == drawn(model, (own, null), of_stacks, scale)
            against = dict(context=model.encoder(other[row : row + 1]))
            assert led[row].tolist() == drawn(model, (own, against), of_stacks, scale)
        if scale == 0:  # nothing is left of the text
            assert torch.equal(found, model.generate(TEXT.flip(0), None, 0.0, temperature=0.0))
    assert torch.equal(found, model.generate(TEXT, MASK, temperature=0.0))
    assert torch.equal(found, model.generate(TEXT, MASK, temperature=0.0, cache_kv=False))
    begun = model.generate(TEXT, MASK, prime=IMAGE[:, :4], temperature=0.0)
    own = dict(context=model.encoder(TEXT[:1]))
    assert begun[0].tolist() == drawn(model, (own, null), of_stacks, 2.5, begun=IMAGE[0, :4].tolist())


def test_configs():
    for made in (one_stream(attn='dalle', cond_drop_prob=0.1), two_stacks(guidance=3.0, dec_ff_glu=True)):
        again = type(made).from_config(made.config).double().eval()
        again.load_state_dict(made.state_dict())
        assert again.config == made.config
        losses = [model.eval()(TEXT, IMAGE) for model in (made, again)]
        assert_close(*(one[0] if isinstance(one, tuple) else one for one in losses))
    names = {name for name in one_stream().state_dict() if not name.startswith('attn_layers.')}
    tables = ('text_emb', 'image_emb', 'text_pos', 'image_row_pos', 'image_col_pos', 'to_logits')
    assert names == {f'{name}.weight' for name in tables} | {'to_logits.bias'}
    assert two_stacks().null_text.shape == (LONG, 16)
    wide = Decoder(dim=16, depth=1, heads=2, ff_glu=True)
    assert one_stream(attn_layers=wide, heads=None).attn_layers is wide


# what they are for


def named(b):
    """Eight patterns of 4 x 4 with two tokens, the binary digits of the name along rows or columns, and their names."""
    which = torch.randint(0, 8, (b, 1))
    bits = (which >> torch.arange(3)) & 1
    rows = F.pad(bits, (0, 1), value=1).unsqueeze(-1)
    return which, (rows ^ (torch.arange(4) % 2)).flatten(1)


@pytest.mark.costly
@pytest.mark.parametrize(
    'kind', ['full', *(pytest.param(kind, marks=pytest.mark.slow) for kind in ('dalle', 'two stacks'))]
)
def test_patterns_that_are_named(kind):
    torch.manual_seed(0)
    sizes = dict(cond_drop_prob=0.1)
    if kind == 'two stacks':
        model = Parti(32, 1, 2, 8, 1, 2, 4, enc_heads=2, dec_heads=2, **sizes)
    else:
        model = DALLE(
            32, 2, heads=2, num_text_tokens=8, text_seq_len=1, num_image_tokens=2, image_grid=4, attn=kind, **sizes
        )
    loss = (lambda: model(*named(64))) if kind == 'two stacks' else lambda: model(*named(64)).loss
    taught(model, loss, steps=250)
    text, image = named(200)
    for scale in (1.0, 2.0):
        found = model.generate(text, cond_scale=scale, temperature=0.5)
        assert (found == image).all(dim=1).float().mean() >= 0.95
    some = model.generate(text, cond_scale=2.0, prime=1 - image[:, :1], temperature=0.5)
    assert (some[:, 0] == 1 - image[:, 0]).all()


def test_what_is_refused():
    ids = torch.zeros(2, LONG + 1).long()
    for make, words in (
        (lambda: DALLE(16), '`depth` is missing'),
        (
            lambda: DALLE(16, attn_layers=Decoder(dim=16, depth=1, heads=2)),
            '`dim` cannot be combined with `attn_layers`',
        ),
        (lambda: DALLE(attn='dalle', attn_layers=Decoder(dim=16, depth=1, heads=2)), 'attn_sparse_pattern=dalle_patt'),
        (lambda: DALLE(attn_layers=Encoder(dim=16, depth=1, heads=2)), r'`attn_layers` must .*got Encoder'),
        (lambda: one_stream(attn='rows'), '`attn` must be'),
        (lambda: one_stream(tokenizer=nn.Linear(2, 2)), '`tokenizer` must be'),
        (lambda: one_stream()(ids, IMAGE), '`text` got 6 tokens, more than `text_seq_len`, 5'),
        (lambda: one_stream()(TEXT + 5, IMAGE), '`text` must be from'),
        (lambda: one_stream()(TEXT, IMAGE + 5), '`image` must '),
        (lambda: one_stream()(TEXT, IMAGE[:, 1:]), '`image` must have 9'),
        (lambda: one_stream()(TEXT[:1], IMAGE), '`image` got 2 rows, `text` has 1'),
        (lambda: one_stream()(TEXT, randn(2, 1, 3, 3)), 'the model has no `tokenizer`'),
        (lambda: one_stream().decode(IMAGE), '`decode` needs a model with a `tokenizer`'),
        (lambda: one_stream()(TEXT, IMAGE, MASK[:, 1:]), '`text_mask` must '),
        (lambda: one_stream().generate(TEXT, cond_scale=2.0), 'set `cond_drop_prob`, or'),
        (lambda: one_stream().generate(TEXT, cond_scale=2.0, negative_text=TEXT[:1]), '`negative_text` got 1 rows'),
        (lambda: one_stream().generate(TEXT, temprature=2.0), '`temprature` is no option'),
        (lambda: two_stacks(cond_drop_prob=0.0, guidance=2.0), r'`guidance` must .*got 2.0'),
        (lambda: two_stacks(dropout=0.1), 'unknown keyword `dropout`'),
        (lambda: two_stacks(cond_drop_prob=0.0).generate(TEXT, cond_scale=2.0), 'set `cond_drop_prob`, or'),
        (lambda: two_stacks()(ids, IMAGE), '`text` got 6 tokens, more than `text_len`, 5'),
        (lambda: two_stacks().generate(TEXT, cond_scale=2.0, negative_text=ids), '`negative_text` got 6 tokens'),
        (lambda: two_stacks()(TEXT, IMAGE + 5), '`image` must '),
        (lambda: two_stacks()(TEXT, IMAGE[:, 1:]), '`image` must have 9'),
        (lambda: two_stacks()(TEXT[:1], IMAGE), '`image` got 2 rows, `text` has 1'),
        (lambda: two_stacks().generate(TEXT, context=randn(2, 3, 16)), '`context` cannot be given'),
    ):
        with pytest.raises((ConfigError, ValueError, TypeError), match=words):
            make()
