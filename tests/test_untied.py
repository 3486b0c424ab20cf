"""Scores of positions apart from those of contents (TUPE), against loops, and where their vectors come from."""

import pytest
import torch
from building import nets
from law_cases import randomise
from oracles import assert_close, randn

from x_transformers import (
    AutoregressiveWrapper,
    ContinuousTransformerWrapper,
    Decoder,
    Encoder,
    MultiInputTransformerWrapper,
    TransformerWrapper,
    ViTransformerWrapper,
)
from x_transformers.core import rows
from x_transformers.features.untied import UntiedPositions
from x_transformers.flags import ConfigError
from x_transformers.x_transformers import no_positions

DIM, HEAD, N, B = 8, 4, 6, 2
SIZES = dict(dim=DIM, depth=2, heads=2, attn_dim_head=HEAD, ff_mult=1, verbose=False)
IDS = torch.randint(0, 9, (B, N), generator=torch.Generator().manual_seed(0))


model = nets(9, 12, Encoder, lambda net: randomise(net.double()), tupe_pos=True, **SIZES)


def by_loops(net, attn, x, vectors, known, causal):
    """(q_i k_j + (p_i U) (p_j V)) / sqrt(2 e), with the numbers of tokens that have no position."""
    stack = net.attn_layers
    q, k, v = (to(x).unflatten(-1, (2, HEAD)) for to in (attn.to_q, attn.to_k, attn.to_v))
    u, w = (matrix.unflatten(-1, (2, HEAD)) for matrix in (stack.tupe_q, stack.tupe_k))
    out = torch.zeros_like(q)
    for b in range(len(x)):
        for h in range(2):
            for i in range(x.shape[1]):
                keys = range(i + 1 if causal else x.shape[1])
                logits = []
                for j in keys:
                    apart = (vectors[b, i] @ u[:, h]) @ (vectors[b, j] @ w[:, h]) / (2 * HEAD) ** 0.5
                    if not known[b, j]:
                        apart = stack.tupe_cls[1, h]
                    if not known[b, i]:
                        apart = stack.tupe_cls[0, h]
                    logits.append(q[b, i, h] @ k[b, j, h] / (2 * HEAD) ** 0.5 + apart)
                out[b, i, h] = torch.stack(logits).softmax(dim=0) @ torch.stack([v[b, j, h] for j in keys])
    return attn.to_out(out.flatten(2))


def through_layers(net, x, vectors, known, causal):
    stack = net.attn_layers
    for norms, branch, _ in stack.layers:
        normed = norms[0](x)
        is_attention = hasattr(branch, 'to_q')
        x = x + (by_loops(net, branch, normed, vectors, known, causal) if is_attention else branch(normed))
    return stack.final_norm(x)


def written_out(net, *given):
    return net.to_logits(through_layers(net, *given))


@pytest.mark.parametrize('blocks', [False, True])
@pytest.mark.parametrize('kind', [Encoder, Decoder])
def test_by_loops(kind, blocks, monkeypatch):
    if blocks:
        monkeypatch.setattr(rows, 'LARGE', {'cpu': 0, 'cuda': 0})
        monkeypatch.setattr(rows, 'BLOCK', {'cpu': 1, 'cuda': 1})
        monkeypatch.setattr(rows, 'FEWEST_ROWS', 3)
    net = model(kind)
    table, everywhere = net.pos_emb.emb.weight * DIM**-0.5, torch.ones(B, N, dtype=torch.bool)
    vectors = table[:N].expand(B, -1, -1)
    assert_close(net(IDS), written_out(net, net.token_emb(IDS), vectors, everywhere, kind is Decoder))
    pos = torch.tensor([[0, 3, 1, 5, 11, 2], [7, 6, 5, 4, 3, 2]])
    assert_close(net(IDS, pos=pos), written_out(net, net.token_emb(IDS), table[pos], everywhere, kind is Decoder))
    given = randn(N, DIM)  # vectors of the user's
    expected = written_out(net, net.token_emb(IDS), given.expand(B, -1, -1), everywhere, kind is Decoder)
    assert_close(net(IDS, pos=given), expected)


def test_tokens_in_front_have_no_position():
    net = model(around=dict(num_memory_tokens=2, average_pool_embed=True))
    vectors = torch.cat((torch.zeros(2, DIM), net.pos_emb.emb.weight[:N] * DIM**-0.5)).expand(B, -1, -1)
    known = (torch.arange(N + 2) >= 2).expand(B, -1)
    x = torch.cat((net.memory_tokens.expand(B, -1, -1), net.token_emb(IDS)), dim=1)
    x = through_layers(net, x, vectors, known, False)
    assert_close(net(IDS), net.to_logits(x[:, 2:].mean(dim=1)))
    assert net.attn_layers.tupe_cls.abs().min() > 0


def test_a_class_token_among_the_tokens():
    net = model(tupe_cls_first=True)
    table = net.pos_emb.emb.weight * DIM**-0.5
    known = (torch.arange(N) > 0).expand(B, -1)
    assert_close(net(IDS), written_out(net, net.token_emb(IDS), table[:N].expand(B, -1, -1), known, False))
    # in each document, and behind padding
    documents = torch.tensor([[0, 0, 0, 1, 1, 1]] * B)
    packed = net(IDS, document_ids=documents)
    assert_close(packed[:, :3], net(IDS[:, :3])), assert_close(packed[:, 3:], net(IDS[:, 3:]))
    decoder = model(Decoder, tupe_cls_first=True)
    padded = decoder(torch.cat((IDS[:, :2], IDS), dim=1), seq_start_pos=torch.tensor([2, 2]))
    assert_close(padded[:, 2:], decoder(IDS))


def test_one_term_for_all_layers_and_rows(monkeypatch):
    net, seen = model(), []
    way = UntiedPositions.bias
    monkeypatch.setattr(UntiedPositions, 'bias', lambda self, call: seen.append(way(self, call)) or seen[-1])
    net(IDS)
    assert len(seen) == 2 and torch.equal(*seen) and seen[0].shape == (1, 2, N, N)


def test_without_products_it_is_another_temperature():
    net = model()
    torch.nn.init.zeros_(net.attn_layers.tupe_q)
    stack = Encoder(**SIZES, attn_softmax_scale=(2 * HEAD) ** -0.5)
    plain = TransformerWrapper(num_tokens=9, max_seq_len=12, use_abs_pos_emb=False, attn_layers=stack).double()
    found = plain.load_state_dict(net.state_dict(), strict=False)
    assert not found.missing_keys
    assert_close(net(IDS), plain(IDS))


def test_beside_the_bias_of_t5():
    net = model(rel_pos_bias=True)
    assert net.pos_emb is not no_positions and net.attn_layers.rel_pos is not None
    before = net(IDS)
    torch.nn.init.zeros_(net.attn_layers.rel_pos.relative_attention_bias.weight)
    alone = model()
    alone.load_state_dict(net.state_dict(), strict=False)
    assert_close(net(IDS), alone(IDS))
    assert (before - net(IDS)).abs().max() > 1e-3


def test_first_values():
    stack = Encoder(**SIZES, tupe_pos=True)
    own = {name: tuple(p.shape) for name, p in stack.named_parameters() if 'tupe' in name}
    assert own == {'tupe_q': (8, 8), 'tupe_k': (8, 8), 'tupe_cls': (2, 2)}
    assert (stack.tupe_cls == 0).all() and 0.4 < stack.tupe_q.abs().max() <= (6 / 16) ** 0.5


@pytest.mark.parametrize(
    'around', [dict(sinu_pos_emb=True), dict(scaled_sinu_pos_emb=True), dict(axial_abs_pos_emb=(3, 4))], ids=str
)
def test_other_vectors_of_positions(around):
    net = model(around=around)
    call = {'pos': torch.arange(N)}
    if 'axial_abs_pos_emb' in around:
        high, low = net.axial_pos
        vectors = high[call['pos'] // 4] + low[call['pos'] % 4]
    else:
        vectors = net.pos_emb(IDS)
    everywhere = torch.ones(B, N, dtype=torch.bool)
    assert_close(net(IDS), written_out(net, net.token_emb(IDS), vectors.expand(B, -1, -1), everywhere, False))


def test_other_wrappers():
    stack = Encoder(**SIZES, tupe_pos=True)
    net = randomise(ContinuousTransformerWrapper(max_seq_len=12, attn_layers=stack).double())
    x, vectors = randn(B, N, DIM), net.pos_emb.emb.weight[:N] * DIM**-0.5
    assert_close(net(x), stack(x, pos_vectors=vectors))
    some = MultiInputTransformerWrapper(
        num_tokens=dict(a=9), max_seq_len=12, attn_layers=Encoder(**SIZES, tupe_pos=True)
    )
    some = randomise(some.double())
    before = some(dict(a=IDS))['a'] if isinstance(some(dict(a=IDS)), dict) else some(dict(a=IDS))
    torch.nn.init.zeros_(some.attn_layers.tupe_q)
    after = some(dict(a=IDS))['a'] if isinstance(some(dict(a=IDS)), dict) else some(dict(a=IDS))
    assert (before - after).abs().max() > 1e-3
    # without products, all orders of tokens are one
    flipped = some(dict(a=IDS.flip(1)))
    flipped = flipped['a'] if isinstance(flipped, dict) else flipped
    assert_close(flipped, after.flip(1))


@pytest.mark.parametrize('cls_first', [False, True])
@pytest.mark.parametrize('place', ['end', 'front'])
def test_images(place, cls_first):
    """Registers have no position, the class token has one unless it is said to have none."""
    stack = Encoder(**SIZES, tupe_pos=True, tupe_cls_first=cls_first)
    sizes = dict(image_size=4, patch_size=2, prefix_tokens=1, num_register_tokens=2, num_classes=9)
    net = randomise(ViTransformerWrapper(attn_layers=stack, register_place=place, **sizes).double())
    image, front = randn(B, 3, 4, 4), place == 'front'
    patches = image.unfold(2, 2, 2).unfold(3, 2, 2).permute(0, 2, 3, 4, 5, 1).reshape(B, 4, 12)
    parts = [net.prefix_tokens.expand(B, -1, -1), net.patch_to_embedding(patches)]
    parts.insert(1 if front else 2, net.register_tokens.expand(B, -1, -1))
    places = [0, None, None, 1, 2, 3, 4] if front else [0, 1, 2, 3, 4, None, None]
    known = torch.tensor([p is not None and not (cls_first and p == 0) for p in places]).expand(B, -1)
    vectors = net.pos_embedding[0, [p or 0 for p in places]].expand(B, -1, -1)
    x = through_layers(net, torch.cat(parts, dim=1), vectors, known, False)
    assert_close(net(image), net.mlp_head((x[:, 3:] if front else x[:, 1:5]).mean(dim=1)))


def test_tokens_are_taken_back():
    """Guesses that were read with the prompt and were wrong: what each row reads then stands in memory of its own."""
    repeating = torch.tensor([[0, 1, 2, 0, 1], [3, 4, 3, 4, 3]])
    net = AutoregressiveWrapper(model(Decoder, rel_pos_bias=True))
    found = net.speculative(repeating, 6, temperature=0.0)
    assert torch.equal(found, net.generate(repeating, 6, temperature=0.0, cache_kv=False))
    assert len(found.unique()) > 2


@pytest.mark.parametrize(
    ('call', 'words'),
    [
        (lambda: model(around=dict(use_abs_pos_emb=False)), '`tupe_pos` needs absolute positions'),
        (lambda: model(disable_abs_pos_emb=True), '`tupe_pos` needs absolute positions'),
        (lambda: model(around=dict(emb_dim=6)), '`tupe_pos` needs positions as wide as the stack, 8, `emb_dim` got 6'),
        (lambda: model(Decoder, around=dict(max_mem_len=3)), '`tupe_pos` cannot be combined with `max_mem_len`'),
        (
            lambda: ViTransformerWrapper(
                image_size=4, patch_size=2, attn_layers=Encoder(**SIZES, tupe_pos=True, tupe_cls_first=True)
            ),
            '`tupe_cls_first` needs `prefix_tokens`',
        ),
        (lambda: model(attn_kv_heads=1), '`attn_tupe_pos` cannot be combined with `attn_kv_heads`'),
        (lambda: model(rotary_pos_emb=True), '`rotary_pos_emb`'),
        (lambda: Encoder(**SIZES, tupe_pos=True)(torch.randn(1, 3, DIM)), '`pos_vectors` is missing'),
        (
            lambda: Encoder(**SIZES, tupe_pos=True)(torch.randn(1, 3, DIM), pos_vectors=torch.randn(2, 3, DIM)),
            r'`pos_vectors` must ',
        ),
        (
            lambda: Encoder(**SIZES, tupe_pos=True)(torch.randn(1, 3, DIM), pos_vectors=torch.randn(2, DIM)),
            '`pos_vectors` must have 3',
        ),
        (
            lambda: Encoder(**SIZES, tupe_pos=True)(
                torch.randn(1, 3, DIM), pos_vectors=torch.randn(3, DIM), pos_known=torch.ones(2).bool()
            ),
            '`pos_known` must have 3',
        ),
        (
            lambda: Decoder(**SIZES, tupe_pos=True)(
                torch.randn(1, 3, DIM), pos_vectors=torch.randn(3, DIM), mems=[torch.randn(1, 2, DIM)] * 2
            ),
            '`tupe_pos` cannot be combined with `mems`',
        ),
    ],
)
def test_refused(call, words):
    with pytest.raises((ConfigError, ValueError), match=words):
        call()
