"""Pairs of sentences: what is drawn, how it is packed, and both losses of BERT by hand and by another library."""

from collections import Counter
from itertools import pairwise
from random import Random

import pytest
import torch
import torch.nn.functional as F
from oracles import assert_close, randomised
from toy_tasks import SEEDS, taught

from x_transformers import BertPretrainWrapper, Decoder, Encoder, TransformerWrapper
from x_transformers.flags import ConfigError
from x_transformers.objectives.sentence_pairs import SentencePair, make_nsp_pairs, make_sop_pairs, pack_pairs

V, PAD, CLS, SEP, MASK = 20, 0, 1, 2, 3
MLM = dict(mask_token_id=MASK, pad_token_id=PAD, ignore_token_ids=(CLS, SEP), mask_prob=0.4)
DOCS = [[[4 + doc, 5 + at, 6] for at in range(5 + doc)] for doc in range(4)] + [[[9, 9]], []]


def net(kind=Encoder, **options):
    layers = kind(dim=16, depth=2, heads=2, attn_dim_head=8)
    sizes = dict(num_tokens=V, max_seq_len=16, embed_num_tokens={'token_type': 2})
    return TransformerWrapper(**{**sizes, **options}, attn_layers=layers)


def test_next_sentences():
    """Half of them are wrong, none of those is the next, and they are from other documents; labels are right."""
    counts, real = Counter(), [[tuple(s) for s in doc] for doc in DOCS]
    follows = {(a, b) for doc in real for a, b in pairwise(doc)}
    for seed in range(100):
        pairs = make_nsp_pairs(DOCS, Random(seed))
        assert len(pairs) == sum(len(doc) - 1 for doc in DOCS[:4]) and pairs == make_nsp_pairs(DOCS, Random(seed))
        for first, second, label in pairs:
            counts[label] += 1
            assert ((first, second) in follows) == (label == 0)
            assert label == 0 or (first[0] != second[0] and second != (9, 9))
    assert abs(counts[0] - counts[1]) < 3 * sum(counts.values()) ** 0.5


def test_wrong_sentences_are_never_equal_to_the_next():
    docs = [[[1], [2]], [[2], [2], [3]]]
    wrong = [pair for seed in range(200) for pair in make_nsp_pairs(docs, Random(seed)) if pair.label]
    assert all(second == (3,) for first, second, _ in wrong if first == (1,)) and len(wrong) > 200
    alone = [pair for seed in range(50) for pair in make_nsp_pairs([[[1], [2], [3]]], Random(seed)) if pair.label]
    assert {pair[:2] for pair in alone} == {((1,), (1,)), ((1,), (3,)), ((2,), (1,)), ((2,), (2,))}
    with pytest.raises(ValueError, match='no sentence that differs'):
        [make_nsp_pairs([[[1], [1]]], Random(seed)) for seed in range(9)]


def test_sentences_in_order_and_not():
    counts = Counter()
    for seed in range(100):
        for first, second, label in make_sop_pairs([*DOCS, [[7], [7]]], Random(seed)):
            counts[label] += 1
            assert first[0] == second[0] and second[1] - first[1] == (-1 if label else 1)
    assert abs(counts[0] - counts[1]) < 3 * sum(counts.values()) ** 0.5


def test_packing():
    pairs = [SentencePair((4, 5, 6, 7, 8), (9, 10), 0), SentencePair((4,), (5,), 1)]
    batch = pack_pairs(pairs, CLS, SEP, PAD, max_len=8)
    assert batch.ids.tolist() == [[1, 4, 5, 6, 2, 9, 10, 2], [1, 4, 2, 5, 2, 0, 0, 0]]
    assert batch.token_types.tolist() == [[0, 0, 0, 0, 0, 1, 1, 1], [0, 0, 0, 1, 1, 0, 0, 0]]
    assert batch.mask.tolist() == [[True] * 8, [True] * 5 + [False] * 3] and batch.labels.tolist() == [0, 1]
    assert pack_pairs(pairs, CLS, SEP, PAD, max_len=6).ids[0].tolist() == [1, 4, 2, 9, 10, 2]
    assert pack_pairs(pairs, CLS, SEP, PAD).ids.shape == (2, 10)


def rows():
    return pack_pairs(make_nsp_pairs(DOCS, Random(0))[:6], CLS, SEP, PAD)


@pytest.mark.parametrize('own', [True, False])
def test_both_losses_by_hand(own):
    around = {} if own else dict(pooler=dict(token='first', dim=16, activation='tanh'))
    made, batch = randomised(BertPretrainWrapper(net(**around), MLM)), rows()
    given = dict(embed_ids={'token_type': batch.token_types})
    torch.manual_seed(0)
    loss, (_, pair_logits, hidden) = made(batch.ids, batch.labels, return_outputs=True, **given)
    logits, states = made.net(hidden.ids, mask=batch.mask, return_logits_and_embeddings=True, **given)
    pooled = (made.pooler if own else made.net.pooler)(states[:, 0]).tanh()
    assert_close(pair_logits, pooled @ made.to_nsp.weight.T + made.to_nsp.bias)
    masked = F.cross_entropy(logits[hidden.chosen], batch.ids[hidden.chosen])
    assert_close(loss, masked + F.cross_entropy(pair_logits, batch.labels))
    torch.manual_seed(0)
    assert_close(made(batch.ids, batch.labels, **given), loss)
    labels = torch.where(torch.arange(6) > 2, -100, batch.labels)
    torch.manual_seed(0)
    assert_close(made(batch.ids, labels, **given), masked + F.cross_entropy(pair_logits[:3], labels[:3]))
    alone = BertPretrainWrapper(made.net, MLM, nsp=False)
    torch.manual_seed(0)
    assert_close(alone(batch.ids, **given), masked)
    assert {name for name in made.state_dict() if not name.startswith('net.')} == {
        *(('pooler.weight', 'pooler.bias') if own else ()), 'to_nsp.weight', 'to_nsp.bias'
    }  # fmt: skip


def test_initial_values():
    torch.manual_seed(0)
    layers = Encoder(dim=128, depth=1)
    made = BertPretrainWrapper(TransformerWrapper(num_tokens=V, max_seq_len=8, attn_layers=layers), MLM)
    for linear in (made.pooler, made.to_nsp):
        assert linear.weight.std().item() == pytest.approx(0.02, rel=0.2) and not linear.bias.any()


@pytest.mark.slow
def test_both_losses_are_those_of_another_library():
    transformers = pytest.importorskip('transformers', reason='the oracle: pip install -e .[test-pretrained]')
    pytest.importorskip('safetensors')
    from tempfile import TemporaryDirectory

    from x_transformers import pretrained

    torch.manual_seed(0)
    sizes = dict(vocab_size=V, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=24)
    config = transformers.BertConfig(**sizes, max_position_embeddings=16)
    theirs = transformers.BertForPreTraining(config).double().eval()
    with TemporaryDirectory() as folder:
        masked = transformers.BertForMaskedLM(theirs.config).double()
        masked.load_state_dict(theirs.state_dict(), strict=False)
        masked.save_pretrained(folder)
        inner = pretrained.load(folder, dtype=torch.float64)
    made, batch = BertPretrainWrapper(inner, MLM).double().eval(), rows()
    made.pooler.load_state_dict(theirs.bert.pooler.dense.state_dict())
    made.to_nsp.load_state_dict(theirs.cls.seq_relationship.state_dict())
    given = dict(embed_ids={'token_type': batch.token_types})
    loss, (_, pair_logits, hidden) = made(batch.ids, batch.labels, return_outputs=True, **given)
    out = theirs(
        hidden.ids, attention_mask=batch.mask.long(), token_type_ids=batch.token_types,
        labels=batch.ids.masked_fill(~hidden.chosen, -100), next_sentence_label=batch.labels,
    )  # fmt: skip
    assert_close(pair_logits, out.seq_relationship_logits)
    assert_close(loss, out.loss)


@pytest.mark.parametrize('build, words', [
    (lambda: BertPretrainWrapper(net(Decoder), MLM), '`net` must see both sides'),
    (lambda: BertPretrainWrapper(net(), {**MLM, 'net': 3}), '`mlm` got `net`'),
    (lambda: BertPretrainWrapper(net(), {**MLM, 'mask_prob': 2}), 'must be a number above 0, up to 1, got 2'),
    (lambda: BertPretrainWrapper(net(), MLM)(rows().ids), '`labels` are missing'),
    (lambda: BertPretrainWrapper(net(), MLM, nsp=False)(rows().ids, rows().labels), '`labels` were given'),
    (lambda: BertPretrainWrapper(net(embed_num_tokens={}), MLM)(rows().ids, rows().labels + 1), '`labels` must '),
    (lambda: BertPretrainWrapper(net(), MLM)(rows().ids, rows().labels, document_ids=rows().ids), '`document_ids`'),
    (lambda: make_nsp_pairs([[[1]], []], Random(0)), '`docs` got no document'),
    (lambda: make_sop_pairs([[[1]], []], Random(0)), '`docs` got no document'),
    (lambda: pack_pairs([], CLS, SEP, PAD), '`pairs` got none'),
    (lambda: pack_pairs([SentencePair((4,), (5,), 0)], CLS, SEP, PAD, max_len=4), r'`max_len` must .*got 4'),
])  # fmt: skip
def test_refusals(build, words):
    with pytest.raises((ConfigError, ValueError), match=words):
        build()


@pytest.mark.slow
@SEEDS
def test_sentences_of_one_chain_or_of_two(seed):
    """Rows of two sentences, both of one Markov chain, or of one each."""
    torch.manual_seed(seed)
    layers = Encoder(dim=32, depth=2, heads=4, attn_dim_head=8)
    inner = TransformerWrapper(num_tokens=9, max_seq_len=27, attn_layers=layers, embed_num_tokens={'token_type': 2})
    made = BertPretrainWrapper(inner, dict(mask_token_id=8, pad_token_id=None, ignore_token_ids=(6, 7)))
    generator = torch.Generator().manual_seed(0)
    tables = torch.randn(2, 6, 6, generator=generator) + 2 * torch.randn(2, 1, 6, generator=generator)
    tables = tables.softmax(dim=-1)

    def draw(b):
        chain, text = torch.randint(0, 2, (b, 2)), [torch.randint(0, 6, (b, 2))]
        for _ in range(11):
            text.append(tables[chain, text[-1]].flatten(0, 1).multinomial(1).view(b, 2))
        first, second = torch.stack(text, dim=-1).unbind(dim=1)
        cls, sep = torch.full((b, 1), 6), torch.full((b, 1), 7)
        types = (torch.arange(27) > 13).long().expand(b, -1)
        return torch.cat((cls, first, sep, second, sep), dim=1), (chain[:, 0] != chain[:, 1]).long(), types

    def loss():
        ids, labels, types = draw(64)
        return made(ids, labels, embed_ids={'token_type': types})

    taught(made, loss, 300)
    ids, labels, types = draw(300)
    with torch.no_grad():
        pair_logits = made(ids, labels, return_outputs=True, embed_ids={'token_type': types})[1][1]
    assert (pair_logits.argmax(dim=-1) == labels).double().mean() >= 0.95
