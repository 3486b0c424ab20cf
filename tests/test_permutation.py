"""Permutation language models: two streams written out, what a logit may depend on, transformers' own, and a cycle."""

import itertools

import pytest
import torch
import torch.nn.functional as F
from law_cases import CASES, each_of, inputs_for, is_per_token, model_of, others_nightly, refused
from oracles import assert_close, randn, randomised
from toy_tasks import taught

from x_transformers import CrossAttender, Decoder, Encoder, PermutationLMWrapper, TransformerWrapper, presets
from x_transformers.flags import ConfigError

V, N = 11, 7
SIZES = dict(dim=16, depth=2, heads=2, attn_dim_head=8)
LINFORMER = dict(attn_linformer_k=2, attn_linformer_max_len=9)
XL = dict(xl_rel_pos=True, xl_rel_segments=True)


def net(around=(), **flags):
    stack = Encoder(**{**SIZES, 'two_stream': True, **flags})
    return randomised(TransformerWrapper(**{**dict(num_tokens=V, max_seq_len=20, attn_layers=stack), **dict(around)}))


def rows(b=2, n=N, seed=0):
    return torch.randint(0, V, (b, n), generator=torch.Generator().manual_seed(seed))


POSITIONS = {
    'learned': {},
    'rotary': dict(rotary_pos_emb=True),
    'XL': XL,
    'T5': dict(rel_pos_bias=True),
    'ALiBi': dict(alibi_pos_bias=True),
    'window': dict(rotary_pos_emb=True, attn_max_attend_past=1, attn_max_attend_future=2),
}


def written_out(made, x, ranks, places):
    """Logits of queries by loops over tokens: two streams with the weights of a pre-norm stack, learned positions."""
    weights = dict(made.named_parameters())
    at = torch.arange(len(x))
    where = made.pos_emb(x[None]).view(-1, 16)[at]
    h, g = weights['token_emb.emb.weight'][x] + where, weights['attn_layers.two_stream_w'] + where[places]
    for j in (0, 2):
        attn = made.attn_layers.layers[j][1]
        norm = made.attn_layers.layers[j][0][0]

        def seen_from(stream, q_ranks, strict, attn=attn, norm=norm, h=h):
            out = torch.zeros(len(stream), 16).double()
            for i, rank in enumerate(q_ranks):
                keys = [j for j in range(len(h)) if (ranks[j] < rank if strict else ranks[j] <= rank)]
                if not keys:
                    continue
                q = attn.to_q(norm(stream[i])).view(2, 8)
                k, v = (to(norm(h[keys])).view(-1, 2, 8) for to in (attn.to_k, attn.to_v))
                shares = (torch.einsum('he,jhe->hj', q, k) * 8**-0.5).softmax(dim=-1)
                out[i] = torch.einsum('hj,jhe->he', shares, v).flatten()
            return stream + attn.to_out(out)

        h, g = seen_from(h, ranks, False), seen_from(g, ranks[places], True)
        norm, ff = made.attn_layers.layers[j + 1][0][0], made.attn_layers.layers[j + 1][1]
        h, g = h + ff(norm(h)), g + ff(norm(g))
    return made.to_logits(made.attn_layers.final_norm(g))


def test_two_streams_written_out():
    made, x = net(), rows(3)
    order = PermutationLMWrapper(made, 0.6).order(x, generator=torch.Generator().manual_seed(1))
    _, (logits, found) = PermutationLMWrapper(made)(x, ranks=order.ranks, return_outputs=True)
    assert torch.equal(found.places, order.places) and order.places.shape == (3, 5)
    for row in range(3):
        assert_close(logits[row], written_out(made, x[row], order.ranks[row], order.places[row]), tolerance=1e-12)


@pytest.mark.parametrize('kind', POSITIONS)
def test_what_a_logit_depends_on(kind):
    """Other ids change the logits of a token if they are known or told before it, and only then: in all 4! orders."""
    flags = dict(POSITIONS[kind])
    window = flags.get('attn_max_attend_past')
    if window:
        flags |= dict(depth=1)
    stack = Encoder(**{**SIZES, **flags}, two_stream=True)
    made = PermutationLMWrapper(randomised(TransformerWrapper(num_tokens=V, max_seq_len=8, attn_layers=stack)))
    x, orders = rows(1, 4), list(itertools.permutations(range(4)))
    x, ranks = x.expand(24, -1), torch.tensor(orders)
    before = made(x, ranks=ranks, return_outputs=True)[1][0]
    for at in range(4):
        other = x.clone()
        other[:, at] = (other[:, at] + 1) % V
        after = made(other, ranks=ranks, return_outputs=True)[1][0]
        changed = (after - before).abs().amax(dim=-1) > 1e-9
        wanted = ranks[:, at : at + 1] < ranks
        if window:
            near = torch.arange(4) - at
            wanted = wanted & (near <= 1) & (near >= -2)
        assert torch.equal(changed, wanted), kind


def with_queries(net, case):
    """Inputs of seven tokens and four queries, the function that takes these inputs, and the order."""
    ranks = torch.tensor([[2, -1, 0, -1, 1, -1, 3], [0, 1, -1, 2, 3, -1, -1]])
    at = torch.tensor([[0, 2, 4, 6], [0, 1, 3, 4]])
    order = dict(stream_ranks=ranks, stream_at=at)

    def both(t):
        index = at.view(2, 4, *[1] * (t.ndim - 2)).expand(2, 4, *t.shape[2:])
        return torch.cat((t, t.gather(1, index)), dim=1)

    inputs = inputs_for(net, case, batch=2)
    x = inputs.pop('x')
    beside = {n: each_of(n, both, t) if n == 'pos' or is_per_token(n, t) else t for n, t in inputs.items()}

    def answers(x):
        out = net(F.pad(x, (0, 4)), **order, **beside)
        while isinstance(out, tuple):
            out = out[0]
        return out[:, -4:].reshape(2, 4, -1)

    return x, answers, ranks


# flags of which only a part is needed, and inputs that count keys
NOT_ASKED = ('attn_bias', 'attn_bias, alibi', 'rotary_pos_emb, given', 'polar_pos_emb, given')
NOT_ASKED += ('rotary_pos_emb, of a stack without any',)


@pytest.mark.parametrize('case', others_nightly(c for c in CASES if c.wrapper is TransformerWrapper), ids=str)
@torch.no_grad()
def test_no_flag_lets_a_query_see_what_it_must_not(case):
    """Beside each flag: the logits of a token do not change with itself and later ones, or the flag is refused."""
    case = case.of_kind(Encoder).with_keywords(two_stream=True)
    if case.name in NOT_ASKED or refused(case) is not None:
        return
    made = model_of(case)
    x, answers, ranks = with_queries(made, case)
    try:
        before = answers(x)
    except ValueError as error:
        assert 'cannot be combined with' in str(error)
        return
    asked = ranks.masked_select(ranks >= 0).view(2, 4)
    seen = False
    for at in range(7):
        other = x.clone()
        other[:, at] = (other[:, at] + 7) % 30
        changed = (answers(other) - before).abs().amax(dim=-1) > 1e-9
        assert not (changed & (ranks[:, at : at + 1] >= asked)).any()
        seen = seen or bool(changed.any())
    assert seen


def test_the_order_of_reading_is_a_causal_model():
    """All predicted from left to right: nothing behind a token matters to it, not even that there is something."""
    made, x = net(rotary_pos_emb=True), rows(2)
    ranks = torch.arange(N).expand(2, -1)
    loss, (logits, order) = PermutationLMWrapper(made)(x, ranks=ranks, return_outputs=True)
    assert torch.equal(order.places, ranks) and torch.equal(order.labels, x)
    assert_close(loss, F.cross_entropy(logits.mT, x))
    for n in range(1, N):
        cut = PermutationLMWrapper(made)(x[:, :n], ranks=ranks[:, :n], return_outputs=True)[1][0]
        assert_close(cut, logits[:, :n], tolerance=1e-12)


def test_a_plain_pass_is_one_of_contents_alone():
    """Without an order the stack is that of an encoder; contents of known tokens are the same beside queries."""
    made, x = net(), rows(2)
    plain = randomised(TransformerWrapper(num_tokens=V, max_seq_len=20, attn_layers=Encoder(**SIZES)))
    plain.load_state_dict({n: t for n, t in made.state_dict().items() if 'two_stream' not in n})
    assert_close(made(x), plain(x))
    ids, at = torch.cat((x, x[:, :2]), dim=1), torch.tensor([[0, 1], [0, 1]])
    beside = made(ids, stream_ranks=torch.full_like(x, -1), stream_at=at)[:, :N]
    assert_close(beside, plain(x), tolerance=1e-12)
    _, trace = made(ids, stream_ranks=torch.full_like(x, -1), stream_at=at, return_intermediates=True)
    assert [h.shape[1] for h in trace.hiddens] == [N, N]


@pytest.mark.parametrize('frac', [1 / 6, 0.5, 1.0])
@pytest.mark.parametrize('perm_len', [None, 3, 7, 50])
def test_orders(frac, perm_len):
    """A share of each piece, rounded up, of real tokens; pieces one after another; all orders equally often."""
    made, x = PermutationLMWrapper(net(), frac, perm_len), rows(400, 7)
    real = torch.ones(400, 7, dtype=torch.bool)
    real[1, 4:] = False
    order = made.order(x, real, generator=torch.Generator().manual_seed(0))
    again = made.order(x, real, generator=torch.Generator().manual_seed(0))
    assert all(map(torch.equal, order, again))
    length = min(perm_len or 7, 7)
    for row, (ranks, places, labels) in enumerate(zip(*order, strict=True)):
        firsts = range(0, 7, length)
        pieces = [ranks[start : start + length] for start in firsts]
        for piece, there in zip(pieces, (real[row, s : s + length] for s in firsts), strict=True):
            assert (piece >= 0).sum() == -int(-there.sum() * frac // 1)
        told = ranks[ranks >= 0]
        assert len(set(told.tolist())) == len(told) and not (ranks >= 0)[~real[row]].any()
        highest = [int(piece.max()) for piece in pieces if (piece >= 0).any()]
        lowest = [int(piece[piece >= 0].min()) for piece in pieces if (piece >= 0).any()]
        assert all(a < b for a, b in itertools.pairwise(itertools.chain(*zip(lowest, highest, strict=True))) if a != b)
        count = int((ranks >= 0).sum())
        assert torch.equal(places[:count], (ranks >= 0).nonzero().squeeze(1))
        assert torch.equal(labels[:count], x[row, places[:count]]) and (labels[count:] == -100).all()
    assert order.places.shape == (400, made.count(7))
    if frac == 1 and perm_len == 3:
        seen = {tuple(r.tolist()) for r in order.ranks[2:, :3]}
        assert seen == set(itertools.permutations(range(3)))
        share = (order.ranks[:, 0] == 0).double().mean()
        assert abs(share - 1 / 3) < 4 * (2 / 9 / 400) ** 0.5


def test_padding_and_the_loss():
    made = PermutationLMWrapper(net(XL_AROUND, **XL), 0.5, pad_token_id=0)
    x = 1 + rows(2) % (V - 1)
    padded = F.pad(x, (0, 3))
    ranks = torch.tensor([[2, -1, 0, -1, 1, -1, 3], [0, 1, -1, 2, -1, -1, -1]])
    loss, (logits, order) = made(padded, ranks=F.pad(ranks, (0, 3), value=-1), return_outputs=True)
    alone, (own, _) = made(x, ranks=ranks, return_outputs=True)
    assert_close(logits, own, tolerance=1e-12)
    assert_close(loss, alone)
    kept = order.labels != -100
    assert_close(loss, F.cross_entropy(logits[kept], order.labels[kept]))
    torch.manual_seed(0)
    drawn = made(padded)
    other = padded.clone()
    other[:, N:] = 5
    torch.manual_seed(0)
    assert_close(made(other, mask=padded != 0), drawn)


XL_AROUND = dict(max_seq_len=0, max_mem_len=5)


def test_memories_are_seen_by_all():
    """A second segment beside the memories of the first: as one row, whose first tokens are known, in one layer."""
    made = PermutationLMWrapper(
        randomised(
            TransformerWrapper(
                num_tokens=V,
                max_seq_len=0,
                max_mem_len=N,
                attn_layers=Encoder(**{**SIZES, 'depth': 1}, two_stream=True, **XL),
            )
        )
    )
    first, second = rows(2), rows(2, seed=1)
    ranks = torch.tensor([[2, -1, 0, -1, 1, -1, 3], [0, 1, 3, 2, -1, -1, -1]])
    _, mems = made(first, return_mems=True)
    _, (logits, _) = made(second, ranks=ranks, mems=mems, return_outputs=True)
    whole = torch.cat((torch.full_like(ranks, -1), ranks), dim=1)
    _, (wanted, _) = made(torch.cat((first, second), dim=1), ranks=whole, return_outputs=True)
    assert [m.shape for m in mems] == [(2, N, 16)]
    assert_close(logits, wanted, tolerance=1e-12)


def test_tokens_in_front_are_known_to_all():
    """Memory tokens change what the first token of an order is, and are what they are beside no query."""
    made, x = net(dict(num_memory_tokens=2)), rows(2)
    ranks = torch.arange(N).expand(2, -1)
    _, (before, _) = PermutationLMWrapper(made)(x, ranks=ranks, return_outputs=True)
    with torch.no_grad():
        made.memory_tokens.neg_()
    _, (after, _) = PermutationLMWrapper(made)(x, ranks=ranks, return_outputs=True)
    assert ((after - before).abs().amax(dim=-1) > 1e-9).all()


def test_segments_by_hand():
    """The term of segments, written out on the attention layer; ids that are all alike are one number per query."""
    stack = randomised(Encoder(dim=16, depth=1, heads=2, attn_dim_head=8, xl_rel_segments=True))
    attn, x = stack.layers[0][1], randn(2, 5, 16)
    segments = torch.tensor([[0, 0, 1, 1, 1], [1, 0, 1, 0, 2]])
    q, k, v = (to(x).view(2, 5, 2, 8).transpose(1, 2) for to in (attn.to_q, attn.to_k, attn.to_v))
    sim = q @ k.mT
    for b, i, j in itertools.product(range(2), range(5), range(5)):
        table = attn.xl_segments[0 if segments[b, i] == segments[b, j] else 1]
        sim[b, :, i, j] = sim[b, :, i, j] + ((q[b, :, i] + attn.xl_s) * table).sum(dim=-1)
    wanted = attn.to_out(((sim * 8**-0.5).softmax(dim=-1) @ v).transpose(1, 2).flatten(2))
    assert_close(attn(x, segment_ids=segments), wanted, tolerance=1e-12)
    assert_close(attn(x, segment_ids=segments * 0), attn(x), tolerance=1e-12)


def test_infilling_is_the_model_that_was_trained():
    """Greedy tokens, one after another, are the largest logits of one pass that is given them, in any order."""
    made, x = PermutationLMWrapper(net(rotary_pos_emb=True)), rows(3, 9)
    missing = torch.rand(3, 9, generator=torch.Generator().manual_seed(0)) < 0.5
    missing[2] = False
    ranks = torch.rand(3, 9, generator=torch.Generator().manual_seed(1)).argsort(dim=-1)
    for order in (None, ranks):
        filled = made.infill(x, missing, temperature=0.0, ranks=order)
        assert torch.equal(filled[~missing], x[~missing])
        places = torch.arange(9).expand(3, -1) if order is None else order
        _, (logits, found) = made(filled, ranks=places.masked_fill(~missing, -1), return_outputs=True)
        real = found.labels != -100
        assert torch.equal(logits.argmax(dim=-1)[real], found.labels[real])
    one = made.infill(x, missing, generator=torch.Generator().manual_seed(3))
    assert torch.equal(one, made.infill(x, missing, generator=torch.Generator().manual_seed(3)))
    assert made.infill(x[:2], missing[:2], mask=torch.arange(9).expand(2, -1) < 4)[:, 4:].equal(x[:2, 4:])


def copied(made, theirs):
    """Give a preset the weights of transformers' XLNet."""
    made.attn_layers.two_stream_w.copy_(theirs.mask_emb[0, 0])
    made.token_emb.emb.weight.copy_(theirs.word_embedding.weight)
    for at, layer in enumerate(theirs.layer):
        attn, ff = made.attn_layers.layers[2 * at], made.attn_layers.layers[2 * at + 1]
        own = layer.rel_attn
        for name in 'qkv':
            getattr(attn[1], f'to_{name}').weight.copy_(getattr(own, name).flatten(1).T)
        attn[1].to_out.weight.copy_(own.o.flatten(1))
        attn[1].xl_r.copy_(own.r.flatten(1))
        for name, tensor in dict(u=own.r_w_bias, v=own.r_r_bias, s=own.r_s_bias, segments=own.seg_embed).items():
            getattr(attn[1], f'xl_{name}').copy_(tensor)
        for (norms, *_), norm in ((attn, own.layer_norm), (ff, layer.ff.layer_norm)):
            norms[2].gamma.copy_(norm.weight - norms[2].unit_offset), norms[2].beta.copy_(norm.bias)
        for linear, other in ((ff[1].ff[0][0], layer.ff.layer_1), (ff[1].output_layer, layer.ff.layer_2)):
            linear.weight.copy_(other.weight), linear.bias.copy_(other.bias)


def precise_positions(qlen, klen, bsz=None, device=None):
    """Those of transformers, which are float32 there."""
    angles = torch.arange(klen, -qlen, -1.0).double()[:, None] * 10000 ** (-torch.arange(0, 32, 2).double() / 32)
    return torch.cat((angles.sin(), angles.cos()), dim=-1)[:, None].expand(-1, bsz, -1)


@torch.no_grad()
def test_transformers_xlnet():
    """Contents, both streams, segments, and the memories of two segments."""
    transformers = pytest.importorskip('transformers', reason='the oracle: pip install -e .[test-pretrained]')
    config = transformers.XLNetConfig(
        vocab_size=50, d_model=32, n_layer=3, n_head=4, d_inner=128, ff_activation='gelu', mem_len=5
    )
    whole = randomised(transformers.XLNetLMHeadModel(config))
    theirs = whole.transformer
    theirs.relative_positional_encoding = precise_positions
    made = presets.build(presets.xlnet_base(dim=32, depth=3, heads=4, num_tokens=50, max_mem_len=5)).double().eval()
    copied(made, theirs)
    made.to_logits.bias.copy_(whole.lm_loss.bias)
    x, segments = rows(2) % 50, torch.tensor([[0, 0, 0, 1, 1, 1, 1], [0, 1, 1, 1, 1, 1, 0]])
    ours = made(x, segment_ids=segments, return_embeddings=True)
    assert_close(ours, theirs(x, token_type_ids=segments).last_hidden_state, tolerance=1e-10)
    real = torch.arange(N) >= torch.tensor([[0], [3]])
    logits, found = made(x, mask=real), whole(x, attention_mask=real.double()).logits
    assert_close(logits[real], found[real], tolerance=1e-10)
    order = PermutationLMWrapper(made, 0.5).order(x, generator=torch.Generator().manual_seed(0))
    later = (order.ranks >= 0)[:, None] & (order.ranks[:, None] >= order.ranks[:, :, None])
    asked, theirs_mems, mems = F.one_hot(order.places, N).double(), None, None
    for _ in range(2):
        found = theirs(
            x, token_type_ids=segments, perm_mask=later.double(), target_mapping=asked, mems=theirs_mems, use_mems=True
        )
        options = dict(segment_ids=segments, mems=mems, return_mems=True, return_embeddings=True)
        ids = torch.cat((x, x[:, : order.places.shape[1]]), dim=1)
        ours, mems = made(ids, stream_ranks=order.ranks, stream_at=order.places, **options)
        assert_close(ours[:, N:], found.last_hidden_state, tolerance=1e-10)
        theirs_mems = [mem[-5:] for mem in found.mems]
        for one, other in zip(mems, theirs_mems, strict=True):
            assert_close(one, other.transpose(0, 1), tolerance=1e-10)


@pytest.mark.nightly
def test_it_learns_a_cycle():
    """Rows that count up from any number: a third of the tokens, infilled from the others."""
    torch.manual_seed(0)
    stack = Encoder(dim=48, depth=2, heads=4, attn_dim_head=12, two_stream=True, xl_rel_pos=True)
    made = PermutationLMWrapper(TransformerWrapper(num_tokens=10, max_seq_len=0, attn_layers=stack), 1 / 3)

    def drawn(b):
        return (torch.randint(0, 10, (b, 1)) + torch.arange(12)) % 10

    taught(made, lambda: made(drawn(32)), 400)
    x, missing = drawn(200), made.order(drawn(200)).ranks >= 0
    filled = made.eval().infill(x, missing, temperature=0.0)
    assert (filled == x)[missing].double().mean() >= 0.99


@pytest.mark.parametrize(
    ('call', 'words'),
    [
        (lambda: PermutationLMWrapper(TransformerWrapper(num_tokens=5, max_seq_len=5, attn_layers=Encoder(**SIZES))),
         r'`net` has no stream of queries: its stack must be an Encoder\(two_stream=True\)'),
        (lambda: PermutationLMWrapper(net(), 0), '`predict_frac` must be a number above 0, up to 1, got 0'),
        (lambda: PermutationLMWrapper(net(), 1.5), '`predict_frac` must be a number above 0, up to 1, got 1.5'),
        (lambda: PermutationLMWrapper(net(), perm_len=0), '`perm_len` must be an integer of at least 1 or None, got 0'),
        (lambda: Decoder(**SIZES, two_stream=True), '`two_stream` cannot be combined with a causal stack'),
        (lambda: Encoder(**SIZES, two_stream=True, cross_attend=True), '`two_stream` cannot be .*with `cross_attend`'),
        (lambda: CrossAttender(**SIZES, two_stream=True), '`two_stream` cannot be combined with `cross_attend`'),
        (lambda: PermutationLMWrapper(net())(rows(), ranks=rows()[:, 1:]), r'`ranks` must be.*got .*\(2, 6\)'),
        (lambda: PermutationLMWrapper(net())(rows(), ranks=rows() - 5), r'`ranks` must .*got ranks from -5'),
        (lambda: PermutationLMWrapper(net())(rows(), attn_mask=torch.ones(7, 7) > 0), '`attn_mask` cannot be given'),
        (lambda: PermutationLMWrapper(net())(rows(), document_ids=rows()), '`document_ids` cannot be given'),
        (lambda: PermutationLMWrapper(net())(rows(), return_mems=True), '`return_mems` needs `max_mem_len`'),
        (lambda: PermutationLMWrapper(net())(rows(2, 0)), r'`x` must .*got shape'),
        (lambda: net()(rows(), stream_ranks=rows()[:, :5]), '`stream_at` is missing'),
        (lambda: net()(rows(), stream_at=rows()[:, :5]), '`stream_ranks` is missing'),
        (lambda: net()(rows(), stream_ranks=rows(), stream_at=rows()[:, :2]), '`stream_ranks` got 7 tokens and'),
        (lambda: net()(rows(), stream_ranks=rows()[:, :6], stream_at=rows()[:, :1] * 0 + 6), '`stream_at` must be'),
        (lambda: net(shift_tokens=1), '`two_stream` cannot be combined with `shift_tokens`'),
        (lambda: net(**LINFORMER)(rows(), stream_ranks=rows()[:, :6], stream_at=rows()[:, :1] * 0),
         '`stream_ranks` cannot be combined with `attn_linformer_k`'),
        (lambda: TransformerWrapper(num_tokens=V, max_seq_len=9, attn_layers=Encoder(**SIZES))(
            rows(), stream_ranks=rows()[:, :6], stream_at=rows()[:, :1] * 0), 'has no `two_stream`'),
        (lambda: net(dict(average_pool_embed=True))(rows(), stream_ranks=rows()[:, :6], stream_at=rows()[:, :1] * 0),
         'a model that pools its tokens'),
        (lambda: net()(rows(), segment_ids=rows()), 'has no `xl_rel_segments`'),
        (lambda: net(**XL)(rows(), segment_ids=rows()[:, 1:]), '`segment_ids` must '),
        (lambda: PermutationLMWrapper(net()).infill(rows(), rows()[:, 1:] > 3), '`missing` must '),
        (lambda: PermutationLMWrapper(net()).infill(rows(), rows() > 3, ranks=rows()[:1]), '`ranks` must '),
        (lambda: PermutationLMWrapper(net()).infill(rows(), rows() > 3, temperature=-1), '`temperature` must be'),
    ],
)  # fmt: skip
def test_refused(call, words):
    with pytest.raises((ConfigError, ValueError, TypeError), match=words):
        call()
