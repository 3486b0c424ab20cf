"""Images among words: where vectors stand, what learns, generation with a cache and without, four patterns named."""

import pytest
import torch
import torch.nn.functional as F
from oracles import assert_close, randn, randomised
from toy_tasks import taught

from x_transformers import (
    AutoregressiveWrapper,
    Decoder,
    Encoder,
    TransformerWrapper,
    VisionLanguageWrapper,
    ViTransformerWrapper,
)
from x_transformers.flags import ConfigError

V, IMAGE, P = 13, 12, 4


def vision(dim=8, depth=2, **options):
    stack = Encoder(dim=dim, depth=depth, heads=2, attn_dim_head=4)
    return ViTransformerWrapper(
        **{**dict(image_size=8, patch_size=4, channels=1, attn_layers=stack, prefix_tokens=1, pool='first'), **options}
    )


def decoder(dim=16, n=40, **flags):
    stack = Decoder(**{**dict(dim=dim, depth=2, heads=2, attn_dim_head=8, rotary_pos_emb=True), **flags})
    return AutoregressiveWrapper(TransformerWrapper(num_tokens=V, max_seq_len=n, attn_layers=stack))


def model(vision_options=(), **options):
    return randomised(VisionLanguageWrapper(vision(**dict(vision_options)), decoder(), IMAGE, **options))


IDS = torch.tensor([[3, IMAGE, 5, 6, 0, 0], [IMAGE, 2, IMAGE, 7, 8, 1], [4, 5, 6, 0, 0, 0]])
MASK = torch.tensor([[True] * 4 + [False] * 2, [True] * 6, [True] * 3 + [False] * 3])
PICTURES = randn(3, 1, 8, 8)


def embeddings(made, ids, vectors):
    """A row of embeddings by hand: words by the table, placeholders by the vectors of their image."""
    left, rows = list(vectors), []
    for one in ids.tolist():
        rows += [left.pop(0)] if one == IMAGE else [made.decoder.net.token_emb.emb.weight[one][None]]
    return torch.cat(rows)


@pytest.mark.parametrize(
    'options', [{}, dict(projector='mlp'), dict(drop_prefix=False), dict(feature_layer=-1), dict(feature_layer=0)]
)
def test_where_vectors_stand(options):
    """No, one and two images in rows of unequal length: the stack reads the embeddings written out."""
    made = model(**options)
    hiddens = made.vision(PICTURES, return_hiddens=True)
    assert len(hiddens) == 3 and torch.equal(hiddens[-1], made.vision(PICTURES, return_embeddings=True))
    found = hiddens[options.get('feature_layer', -2)]
    vectors = made.projector(found if options.get('drop_prefix') is False else found[:, 1:])
    assert_close(vectors, made.features(PICTURES))
    loss, (logits, _) = made(IDS, PICTURES, mask=MASK, return_outputs=True)
    net, first, total = made.decoder.net, 0, []
    for row, real in zip(IDS, MASK, strict=True):
        own = row[real]
        count = int((own == IMAGE).sum())
        x = embeddings(made, own, vectors[first : first + count])
        first += count
        wanted = net.to_logits(net.attn_layers(x[None]))[0]
        at = len(total)
        assert_close(logits[at, : len(x) - 1], wanted[:-1])
        targets, place = [], 0
        for one in own.tolist():
            width = vectors.shape[1] if one == IMAGE else 1
            targets += [-100] * width if one == IMAGE else [one]
            place += width
        total.append((wanted[:-1], torch.tensor(targets)[1:]))
    wanted = F.cross_entropy(torch.cat([z for z, _ in total]), torch.cat([t for _, t in total]), ignore_index=-100)
    assert_close(loss, wanted)


def test_labels_of_the_answer():
    made = model()
    noise = IDS.masked_fill(~MASK, IMAGE)  # padding is no image
    assert_close(made(noise, PICTURES, mask=MASK), made(IDS, PICTURES, mask=MASK))
    labels = IDS.masked_fill(torch.arange(6) < 3, -100)
    loss = made(IDS, PICTURES, labels, mask=MASK)
    spliced = made.splice(IDS, PICTURES, MASK, labels)
    assert (spliced.labels >= 0).sum(dim=1).tolist() == [1, 3, 0]
    assert spliced.ids.shape == (3, 6 + 2 * (P - 1)) and (spliced.labels[spliced.images] == -100).all()
    _, (logits, _) = made(IDS, PICTURES, labels, mask=MASK, return_outputs=True)
    kept = spliced.labels[:, 1:] != -100
    assert_close(loss, F.cross_entropy(logits[kept], spliced.labels[:, 1:][kept]))


def test_a_projector_of_nothing_gives_zeros():
    made = model()
    with torch.no_grad():
        made.projector.weight.zero_(), made.projector.bias.zero_()
    assert (made.splice(IDS, PICTURES, MASK).vectors == 0).all()
    assert not torch.allclose(made(IDS[:1], PICTURES[:1]), made(IDS[:1, [0, 2, 3, 4, 5]]))


def test_what_learns():
    made = model()
    learning = lambda: {n for n, p in made.named_parameters() if p.requires_grad}  # noqa: E731
    assert learning() == {'projector.weight', 'projector.bias'}
    made(IDS, PICTURES, mask=MASK).backward()
    assert made.projector.weight.grad.abs().sum() > 0
    made.unfreeze('decoder')
    assert learning() == {n for n, _ in made.named_parameters() if not n.startswith('vision')}
    assert {n for n, _ in VisionLanguageWrapper(vision(), decoder(), IMAGE, freeze=()).named_parameters()} >= learning()
    fresh = VisionLanguageWrapper(vision(dim=16), decoder(), IMAGE, projector=None)
    assert isinstance(fresh.projector, torch.nn.Identity)


@pytest.mark.parametrize('flags', [{}, dict(rotary_pos_emb=False)])
def test_generation(flags):
    """Rows padded on either side, greedy: with a cache as without, and each token the largest logit of the whole."""
    made = randomised(VisionLanguageWrapper(vision(), decoder(**flags), IMAGE))
    greedy = dict(temperature=0.0, banned_tokens=[IMAGE])
    found = made.generate(IDS, 5, PICTURES, MASK, **greedy)
    assert torch.equal(found, made.generate(IDS, 5, PICTURES, MASK, **greedy, cache_kv=False))
    images = [PICTURES[:1], PICTURES[1:], None]
    for row, real, own, new in zip(IDS, MASK, images, found, strict=True):
        ids = row[real][None]
        assert torch.equal(made.generate(ids, 5, own, **greedy)[0], new)
        for token in new.tolist():
            spliced = made.splice(ids, own)
            put = made.spliced(spliced.images, spliced.vectors, whole=True)
            logits = made.decoder.net(spliced.ids, transform_token_embeds=put)[0, -1]
            logits[IMAGE] = -torch.inf
            assert int(logits.argmax()) == token
            ids = torch.cat((ids, torch.tensor([[token]])), dim=1)


def test_it_comes_back_from_its_config():
    made = model(projector='mlp')
    again = VisionLanguageWrapper.from_config(made.config).double().eval()
    again.load_state_dict(made.state_dict())
    assert torch.equal(again(IDS, PICTURES, mask=MASK), made(IDS, PICTURES, mask=MASK))


@pytest.mark.nightly
def test_it_names_patterns_through_the_projector_alone():
    """A frozen decoder that has learned to name what a word stands for; images take the place of that word."""
    torch.manual_seed(0)
    text = decoder(dim=32, n=12)
    taught(text, lambda: text(words(64)), 300)
    stack = Encoder(dim=16, depth=1, heads=2, attn_dim_head=8)
    eyes = ViTransformerWrapper(image_size=8, patch_size=8, channels=1, attn_layers=stack)
    made = VisionLanguageWrapper(eyes, text, IMAGE, feature_layer=-1)

    def drawn(b):
        kind = torch.randint(0, 4, (b,))
        lines = (torch.arange(8)[:, None] + torch.zeros(8, 8).long()) % 2 * 1.0
        patterns = torch.stack((lines, lines.T, (lines + lines.T) % 2, torch.ones(8, 8)))
        ids = torch.tensor([[1, IMAGE, 2]]).expand(b, -1)
        return torch.cat((ids, 3 + kind[:, None]), dim=1), patterns[kind][:, None] + 0.1 * torch.randn(b, 1, 8, 8)

    def loss():
        ids, images = drawn(64)
        return made(ids, images, ids.masked_fill(torch.arange(4) < 3, -100))

    taught(made, loss, 300, lr=1e-2)
    ids, images = drawn(200)
    found = made.generate(ids[:, :3], 1, images, temperature=0.0)
    assert (found[:, 0] == ids[:, 3]).double().mean() >= 0.95


def words(b):
    """'1 w 2 name': the name of w, of 4."""
    kind = torch.randint(0, 4, (b, 1))
    return torch.cat((torch.ones_like(kind), 7 + kind, 2 * torch.ones_like(kind), 3 + kind), dim=1)


@pytest.mark.parametrize(
    ('call', 'words'),
    [
        (lambda: model()(IDS, PICTURES[:2], mask=MASK), r'`images` got 2, there are 3 placeholders \(12\)'),
        (lambda: model()(IDS, mask=MASK), '`images` got 0, there are 3'),
        (lambda: model()(IDS, PICTURES, IDS[:, 1:], mask=MASK), '`labels` must '),
        (lambda: model()(IDS, PICTURES, mask=MASK, prepend_embeds=PICTURES), '`prepend_embeds` cannot be given'),
        (lambda: model().generate(IDS, 40, PICTURES, MASK), '`seq_len` got 40 behind 12 places'),
        (lambda: model(projector=None), '`projector` got None, but images have 8 features and words 16'),
        (lambda: model(projector='cnn'), "`projector` must be one of 'linear', 'mlp' or None, got 'cnn'"),
        (lambda: model(feature_layer=5), '`feature_layer` got 5, there are 2 blocks'),
        (lambda: model(freeze=('eyes',)), r"`freeze` must be some of 'vision' and 'decoder', got \('eyes',\)"),
        (lambda: model().unfreeze('eyes'), r"`names` must .*got 'eyes'"),
        (lambda: VisionLanguageWrapper(vision(), decoder(), 13), '`image_token_id` must be less than 13, got 13'),
        (lambda: VisionLanguageWrapper(vision(), decoder().net, 3), '`decoder` must be'),
        (lambda: VisionLanguageWrapper(decoder().net, decoder(), 3), '`feature_layer` needs a ViTransformerWrapper'),
        (lambda: vision()(PICTURES.float(), return_hiddens=True, return_embeddings=True), '`return_hiddens` gives'),
    ],
)  # fmt: skip
def test_refused(call, words):
    with pytest.raises((ConfigError, ValueError, TypeError), match=words):
        call()
