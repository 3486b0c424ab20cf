"""The calls that two READMEs of the original show, of releases 0.12.1 and 2.0.1: the same keywords, tiny sizes.

One test per block of code there, 28 and 58. The early one has calls that later releases of the original refuse.
"""

import pytest
import torch
import torch.nn.functional as F

from x_transformers import (
    AutoregressiveWrapper,
    ContinuousAutoregressiveWrapper,
    ContinuousTransformerWrapper,
    CrossAttender,
    Decoder,
    Encoder,
    TransformerWrapper,
    ViTransformerWrapper,
    XLAutoregressiveWrapper,
    XTransformer,
    XValAutoregressiveWrapper,
    XValTransformerWrapper,
)

OLD, NEW = '0.12.1', '2.0.1'
BOTH = (OLD, NEW)
TOKENS, LENGTH, DIM = 11, 12, 16
SIZES = dict(dim=DIM, depth=2, heads=4)
SIDES = {f'{side}_{name}': value for side in ('enc', 'dec') for name, value in
         dict(num_tokens=TOKENS, depth=2, heads=4, max_seq_len=LENGTH).items()}  # fmt: skip


def ids(*shape, tokens=TOKENS):
    return torch.randint(0, tokens, shape or (1, LENGTH))


def real(*shape):
    return torch.ones(shape, dtype=torch.bool)


def trained(module, loss):
    """One backward pass: a finite scalar, and finite gradients, some of them not zero."""
    assert loss.shape == () and loss.isfinite()
    module.zero_grad()
    loss.backward()
    grads = [p.grad for p in module.parameters() if p.grad is not None]
    assert all(grad.isfinite().all() for grad in grads) and any(grad.any() for grad in grads)


def follows(module, x, *shape, **inputs):
    """The output of a module has the shape, and can be trained on."""
    out = module(x, **inputs)
    assert out.shape == shape and out.isfinite().all()
    trained(module, out.float().square().mean())


# blocks that build a model of tokens: heading, releases, the stack, its keywords beside the sizes, those of the model

MODELS = [
    ('usage, decoder', BOTH, Decoder, {}, {}),
    ('usage, gpt-3', BOTH, Decoder, dict(attn_dim_head=8), {}),
    ('dropouts', (OLD,), Decoder, dict(attn_dropout=0.1, ff_dropout=0.1), dict(emb_dropout=0.1)),
    ('dropouts', (NEW,), Decoder, dict(layer_dropout=0.1, attn_dropout=0.1, ff_dropout=0.1), dict(emb_dropout=0.1)),
    ('flash attention', (NEW,), Decoder, dict(attn_flash=True), {}),
    ('memory transformers', BOTH, Encoder, {}, dict(num_memory_tokens=3)),
    ('transformers without tears', BOTH, Decoder, dict(use_scalenorm=True), {}),
    ('transformers without tears, embedding', (NEW,), Decoder, {}, dict(l2norm_embed=True)),
    ('transformers without tears, norm', (NEW,), Decoder, {}, dict(post_emb_norm=True)),
    ('rms norm', (NEW,), Decoder, dict(use_rmsnorm=True), {}),
    ('rms norm, simple', (NEW,), Decoder, dict(use_simple_rmsnorm=True), {}),
    ('glu', BOTH, Decoder, dict(ff_glu=True), {}),
    ('glu, swish', (NEW,), Decoder, dict(ff_swish=True, ff_glu=True), {}),
    ('no bias in feedforward', (NEW,), Decoder, dict(ff_no_bias=True), {}),
    ('relu squared', (NEW,), Decoder, dict(ff_relu_squared=True), {}),
    ('rezero', (OLD,), Decoder, dict(use_rezero=True), {}),
    ('explicit sparse', (OLD,), Decoder, dict(attn_sparse_topk=2), {}),
    ('explicit sparse', (NEW,), Decoder, dict(attn_sparse_topk=2, attn_sparse_topk_straight_through=True), {}),
    ('explicit sparse, entmax', (OLD,), Decoder, dict(attn_use_entmax15=True), {}),
    ('explicit sparse, hard', (NEW,), Decoder, dict(attn_hard=True), {}),
    ('talking heads', (OLD,), Decoder, dict(attn_talking_heads=True), {}),
    ('talking heads', (NEW,), Decoder, dict(attn_pre_talking_heads=True, attn_post_talking_heads=True), {}),
    ('collaborative attention', (OLD,), Decoder, dict(attn_collab_heads=True, attn_collab_compression=0.3), {}),
    ('one write-head', (NEW,), Decoder, dict(attn_one_kv_head=True), {}),
    ('one write-head, groups', (NEW,), Decoder, dict(attn_kv_heads=2), {}),
    ('attention on attention', BOTH, Encoder, dict(attn_on_attn=True), {}),
    ('gating on values', (NEW,), Encoder, dict(attn_gate_values=True), {}),
    ('reordering sublayers', BOTH, Encoder, dict(sandwich_coef=2), {}),
    ('weight-tied layers', (NEW,), Encoder, dict(weight_tie_layers=True, heads=None), {}),
    ('weight-tied layers, order', (NEW,), Decoder,
     dict(custom_layers=('a', 'f') * 2, layers_execute_order=(0, 1) * 2 + (2, 3) * 2, depth=None, heads=None), {}),
    ('multi-particle view', BOTH, Encoder, dict(macaron=True), {}),
    ('t5 relative positions', BOTH, Decoder, dict(rel_pos_bias=True), {}),
    ('position infused attention', (OLD,), Decoder, dict(position_infused_attn=True), {}),
    ('residual attention', BOTH, Encoder, dict(pre_norm=False, residual_attn=True), {}),
    ('gated residual', BOTH, Decoder, dict(gate_residual=True), dict(max_mem_len=2 * LENGTH)),
    ('rotary positions', BOTH, Decoder, dict(rotary_pos_emb=True), {}),
    ('rotary positions, xpos', (NEW,), Decoder, dict(rotary_xpos=True), {}),
    ('dynamic bias', (NEW,), Decoder, dict(dynamic_pos_bias=True, dynamic_pos_bias_log_distance=False), {}),
    ('alibi', (NEW,), Decoder, dict(alibi_pos_bias=True, alibi_num_heads=2), {}),
    ('shifted tokens', (NEW,), Decoder, dict(shift_tokens=1), {}),
    ('shifted tokens, per layer', (NEW,), Decoder, dict(shift_tokens=(1, 1, 0, 0)), {}),
    ('sandwich norm', (NEW,), Decoder, dict(sandwich_norm=True), {}),
    ('residual', (NEW,), Decoder, dict(resi_dual=True, resi_dual_scale=0.1), {}),
    ('normformer, heads', (NEW,), Decoder, dict(attn_head_scale=True), {}),
    ('normformer, feedforward', (NEW,), Decoder, dict(ff_post_act_ln=True), {}),
    ('normformer, residual', (NEW,), Decoder, dict(scale_residual=True), {}),
    ('cosine similarity, groups', (NEW,), Decoder, dict(attn_qk_norm=True, attn_qk_norm_groups=8), {}),
    ('cosine similarity, scale', (NEW,), Decoder, dict(attn_qk_norm=True, attn_qk_norm_scale=10), {}),
    ('qk rms norm', (NEW,), Decoder, dict(attn_qk_norm=True, attn_qk_norm_dim_scale=True), {}),
    ('no absolute positions', (NEW,), Decoder, {}, dict(use_abs_pos_emb=False)),
]  # fmt: skip


def token_model(kind=Decoder, flags=None, **model_flags):
    """A model of tokens. A size that is None is left to its default, as some blocks do."""
    sizes = {name: value for name, value in {**SIZES, **(flags or {})}.items() if value is not None}
    return TransformerWrapper(num_tokens=TOKENS, max_seq_len=LENGTH, attn_layers=kind(**sizes), **model_flags)


@pytest.mark.parametrize(
    ('kind', 'flags', 'model_flags'),
    [pytest.param(*parts, id=f'{release}: {heading}') for heading, releases, *parts in MODELS for release in releases],
)
def test_model_of_tokens(kind, flags, model_flags, logged):
    model, x = token_model(kind, flags, **model_flags), ids()
    assert logged == []
    logits = model(x)
    assert logits.shape == (1, LENGTH, TOKENS)
    trained(model, F.cross_entropy(logits.transpose(1, 2), x.roll(-1, dims=1)))
    assert 'layer_dropout' in flags or all(p.grad is not None for p in model.parameters())


# blocks that do more. Each is a function; a release that is not its default is given as its argument

OTHERS = []


def block(heading, releases=BOTH):
    def register(fn):
        OTHERS.extend(pytest.param(fn, release, id=f'{release}: {heading}') for release in releases)
        return fn

    return register


@block('usage, encoder and decoder')
def encoder_and_decoder(release):
    model = XTransformer(dim=DIM, **SIDES, tie_token_emb=True)
    assert model.encoder.token_emb is model.decoder.net.token_emb
    source, target = ids(), ids()
    now = dict(mask=real(1, LENGTH))
    early = dict(src_mask=real(1, LENGTH), tgt_mask=real(1, LENGTH))
    loss = model(source, target, **(early if release == OLD else now))
    trained(model, loss)
    assert torch.equal(loss, model(source, target, **now))


@block('usage, encoder')
def encoder_with_a_mask(release):
    follows(token_model(Encoder), ids(), 1, LENGTH, TOKENS, mask=real(1, LENGTH))


def vision(**flags):
    return ViTransformerWrapper(image_size=16, patch_size=8, attn_layers=Encoder(**SIZES), **flags)


@block('usage, image')
def image_to_classes(release):
    follows(vision(num_classes=7), torch.randn(1, 3, 16, 16), 1, 7)


@block('usage, caption')
def image_to_caption(release):
    images, captions = vision(), token_model(flags=dict(cross_attend=True))
    patches = images(torch.randn(1, 3, 16, 16), return_embeddings=True)
    assert patches.shape == (1, 4, DIM)
    follows(captions, ids(), 1, LENGTH, TOKENS, context=patches)
    assert any(p.grad is not None for p in images.parameters())


@block('usage, pali', (NEW,))
def image_and_text_to_text(release):
    images, model = vision(), XTransformer(dim=DIM, **SIDES)
    patches = images(torch.randn(1, 3, 16, 16), return_embeddings=True)
    trained(model, model(ids(), ids(), mask=real(1, LENGTH), src_prepend_embeds=patches))
    assert any(p.grad is not None and p.grad.any() for p in images.parameters())


@block('persistent memory')
def memory_keys(release):
    follows(Encoder(**SIZES, attn_num_mem_kv=3), torch.randn(1, LENGTH, DIM), 1, LENGTH, DIM)


@block('residual attention, cross')
def residual_cross_attention(release):
    model = XTransformer(dim=DIM, **SIDES, dec_cross_residual_attn=True)
    trained(model, model(ids(), ids()))


def recurrent(model, segments):
    """Read segments of `max_seq_len` tokens, each with what the ones before left: as many tokens as there were."""
    past = {}
    for number in range(1, segments + 1):
        logits, mems = model(ids(), **past, return_mems=True)
        assert logits.shape == (1, LENGTH, TOKENS)
        assert [mem.shape for mem in mems] == [(1, number * LENGTH, DIM)] * 2
        past = dict(mems=mems)
    trained(model, logits.square().mean())


@block('transformer-xl')
def segments_with_memories(release):
    recurrent(token_model(flags=dict(rel_pos_bias=True), max_mem_len=4 * LENGTH), 3)


@block('transformer-xl, wrapper', (NEW,))
def segments_wrapped(release):
    model = XLAutoregressiveWrapper(token_model(flags=dict(rel_pos_bias=True), max_mem_len=4 * LENGTH))
    long = ids(1, 8 * LENGTH)
    trained(model, model(long))
    out = model.generate(long[:, : 2 * LENGTH], 3 * LENGTH)
    assert out.shape == (1, 3 * LENGTH) and 0 <= out.min() and out.max() < TOKENS


@block('enhanced recurrence', (NEW,))
def memories_one_layer_down(release):
    recurrent(token_model(flags=dict(rotary_pos_emb=True), max_mem_len=4 * LENGTH, shift_mem_down=1), 2)


@block('forgetful causal mask', (NEW,))
def forgetful(release):
    model = AutoregressiveWrapper(token_model(), mask_prob=0.15)
    trained(model, model(ids()))


@block('cross attention')
def sets_of_vectors(release):
    reader, asker = Encoder(dim=DIM, depth=2), CrossAttender(dim=DIM, depth=2)
    few, many = torch.randn(1, 1, DIM), torch.randn(1, 5, DIM)
    read = reader(many, mask=real(1, 5))
    follows(asker, few, 1, 1, DIM, context=read, mask=real(1, 1), context_mask=real(1, 5))
    assert all(p.grad is not None for p in reader.parameters())


def vectors(dim_in, dim_out):
    return ContinuousTransformerWrapper(
        dim_in=dim_in, dim_out=dim_out, max_seq_len=LENGTH, attn_layers=Decoder(**SIZES)
    )


@block('continuous')
def vectors_to_vectors(release):
    follows(vectors(3, 5), torch.randn(1, LENGTH, 3), 1, LENGTH, 5, mask=real(1, LENGTH))


@block('continuous, autoregressive', (NEW,))
def next_vectors(release):
    model = ContinuousAutoregressiveWrapper(vectors(7, 7))
    trained(model, model(torch.randn(1, LENGTH, 7), mask=real(1, LENGTH)))
    out = model.generate(torch.randn(1, 7), 9)
    assert out.shape == (9, 7) and out.isfinite().all()


@block('xval', (NEW,))
def numbers_among_tokens(release):
    net = XValTransformerWrapper(
        num_tokens=4, numerical_token_id=3, max_seq_len=LENGTH, attn_layers=Decoder(**SIZES)
    )  # fmt: skip
    model = XValAutoregressiveWrapper(net)
    trained(model, model(ids(1, 9, tokens=4), torch.randn(1, 9)))
    tokens, numbers, is_number = model.generate(ids(1, 1, tokens=4), torch.randn(1, 1), 8)
    assert tokens.shape == numbers.shape == is_number.shape == (1, 8)
    assert is_number.dtype == torch.bool and torch.equal(is_number, tokens == 3)


@pytest.mark.parametrize(('run', 'release'), OTHERS)
def test_call(run, release):
    run(release)


@pytest.mark.parametrize(('release', 'blocks'), [(OLD, 28), (NEW, 58)])
def test_no_block_is_left_out(release, blocks):
    models = sum(release in releases for _, releases, *_ in MODELS)
    assert models + sum(param.values[1] == release for param in OTHERS) == blocks


# the masks of the early encoder-decoder call


@pytest.fixture
def pair():
    return XTransformer(dim=DIM, **SIDES, pad_value=3).double().eval()


def test_early_masks_are_accepted_with_a_warning(pair, logged):
    pair(ids(), ids(), src_mask=real(1, LENGTH), tgt_mask=real(1, LENGTH))
    assert sum('`src_mask` is now `mask`' in text for text in logged) == 1
    assert sum('`tgt_mask`' in text and '`ignore_index`' in text for text in logged) == 1
    pair.generate(ids(), ids(1, 2), 3, src_mask=real(1, LENGTH))
    assert len(logged) == 2


@pytest.mark.slow
def test_early_masks_are_compiled_into_one_graph(pair):
    torch._dynamo.reset()
    masks = dict(src_mask=real(1, LENGTH), tgt_mask=torch.arange(LENGTH)[None] < 7)
    source, target = ids(), ids()
    loss = torch.compile(pair, backend='eager', fullgraph=True)(source, target, **masks)
    torch.testing.assert_close(loss, pair(source, target, **masks))


def test_hidden_targets_have_no_loss(pair):
    """Padded rows: the mean over all targets that are real, each row read by itself."""
    source, target, lengths = ids(3, LENGTH), ids(3, LENGTH), (LENGTH, 5, 2)
    mask = torch.arange(LENGTH) < torch.tensor(lengths)[:, None]
    rows = [pair(source[[i]], target[[i], :n]) * (n - 1) for i, n in enumerate(lengths)]
    expected = sum(rows) / sum(n - 1 for n in lengths)
    torch.testing.assert_close(pair(source, target, tgt_mask=mask), expected)
    torch.testing.assert_close(pair(source, target.masked_fill(~mask, -100)), expected)


def test_what_stands_at_hidden_targets_does_not_matter(pair):
    """Padding at the left and holes as well."""
    source, target = ids(4, LENGTH), ids(4, LENGTH)
    mask = torch.rand(4, LENGTH) > 0.4
    mask[0, :5] = False
    other = torch.where(mask, target, ids(4, LENGTH))
    assert not torch.equal(other, target)
    loss = pair(source, target, tgt_mask=mask)
    assert torch.equal(loss, pair(source, other, tgt_mask=mask))
    assert torch.equal(loss, pair(source, target.to(torch.uint8), tgt_mask=mask.long()))
    assert pair(source, target, tgt_mask=torch.zeros_like(mask)) == 0


def test_hidden_targets_are_hidden_keys(pair):
    """A hole is read by no later token: the loss is that of the decoder with those keys left out."""
    source, target, mask = ids(2, LENGTH), ids(2, LENGTH), torch.rand(2, LENGTH) > 0.4
    logits = pair.decoder.net(target, context=pair.encoder(source), mask=mask).log_softmax(dim=-1)
    picked = logits[:, :-1].gather(-1, target[:, 1:, None])[..., 0]
    counted = mask[:, 1:] & mask[:, :-1]  # a hidden token predicts nothing
    torch.testing.assert_close(pair(source, target, tgt_mask=mask), -picked[counted].mean())


@pytest.mark.parametrize(
    ('mask', 'error', 'words'),
    [
        (real(1, LENGTH - 1), ValueError, r'`tgt_mask` must '),
        (torch.ones(1, LENGTH), TypeError, '`tgt_mask` must be boolean.*got torch.float32'),
        (True, TypeError, '`tgt_mask` must be a tensor, got True'),
    ],
)
def test_malformed_masks_of_targets_are_refused(pair, mask, error, words):
    with pytest.raises(error, match=words):
        pair(ids(), ids(), tgt_mask=mask)


def test_masks_of_the_source_have_one_name(pair):
    with pytest.raises(ValueError, match='`mask` and `src_mask` were both given'):
        pair(ids(), ids(), mask=real(1, LENGTH), src_mask=real(1, LENGTH))
