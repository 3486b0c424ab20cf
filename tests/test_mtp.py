"""Multi-token prediction: the loss of its modules, and drafts by them."""

import pytest
import torch
import torch.nn.functional as F
from oracles import assert_close, randomised
from toy_nets import diverse, ids_of, vectors_of

from x_transformers import AutoregressiveWrapper, Decoder, Encoder, PrefixDecoder, TransformerWrapper
from x_transformers.flags import ConfigError
from x_transformers.generation.speculative import Draft

VOCAB, DIM = 11, 16
GREEDY = dict(temperature=0.0)


def net_of(stack=(), kind=Decoder, **keywords):
    stack = dict(dim=DIM, depth=2, heads=2, attn_dim_head=8, ff_mult=2, rotary_pos_emb=True) | dict(stack)
    keywords = dict(num_tokens=VOCAB, max_seq_len=0, mtp_depth=2) | keywords
    return randomised(TransformerWrapper(attn_layers=kind(**stack), **keywords))


def language(stack=(), **keywords):
    return AutoregressiveWrapper(net_of(stack, **keywords)).train()


# the loss


def rms(x, weight):
    return x / x.square().mean(dim=-1, keepdim=True).sqrt() * weight


def losses_of(net, ids, **inputs):
    """The losses of one text (n), summed: of the next token and of each module, and the number of targets of each."""
    n = len(ids)
    hidden, intermediates = net(ids[None], return_embeddings=True, return_intermediates=True, **inputs)
    hidden, stream = hidden[:, -n:], intermediates.layer_hiddens[-1][:, -n:]
    entropies = [F.cross_entropy(net.to_logits(hidden)[0, : n - 1], ids[1:], reduction='sum')]
    before = stream if net.mtp_hidden == 'stream' else hidden
    for k, module in enumerate(net.mtp, start=1):
        total, after = 0.0, []
        for i in range(n - k):
            embed = net.project_emb(net.token_emb.emb.weight[ids[i + k]])
            both = rms(embed, module.embed_norm.g), rms(before[0, i], module.hidden_norm.g)
            after.append(module.merge.weight @ torch.cat(both))
        before = module.block(torch.stack(after)[None], **inputs) if after else before[:, :0]
        for i in range(n - k - 1):
            logits = net.to_logits(rms(before[0, i], module.norm.g))
            total = total + F.cross_entropy(logits, ids[i + k + 1])
        entropies.append(total)
    return entropies, [n - 1 - k for k in range(len(net.mtp) + 1)]


def loss_of(net, texts, weight=0.3, **inputs):
    found = [losses_of(net, text, **inputs) for text in texts]
    sums = [sum(own[0][k] for own in found) for k in range(len(net.mtp) + 1)]
    counts = [sum(max(own[1][k], 0) for own in found) for k in range(len(net.mtp) + 1)]
    first, *others = [total / max(count, 1) for total, count in zip(sums, counts, strict=True)]
    return first + weight / len(others) * sum(others)


FLAGS = {
    'stream': {},
    'normed': dict(mtp_hidden='normed'),
    'one': dict(mtp_depth=1, mtp_loss_weight=0.7),
    'rms': dict(stack=dict(use_rmsnorm=True, ff_glu=True, attn_kv_heads=1), tie_embedding=True),
    'narrow table': dict(emb_dim=6, mtp_block=dict(heads=4, ff_mult=1)),
    'values per layer': dict(stack=dict(attn_qk_norm=(True, False), ff_mult=(1, 3))),
}


@pytest.mark.parametrize('name', FLAGS)
def test_loss_is_that_of_a_loop(name):
    model, ids = language(**FLAGS[name]), ids_of(3, 7, vocab=VOCAB)
    expected = loss_of(model.net, ids, FLAGS[name].get('mtp_loss_weight', 0.3))
    loss = model(ids)
    assert_close(loss, expected, tolerance=1e-10)
    parameters = dict(model.named_parameters())
    for one, other in zip(
        *(torch.autograd.grad(of, list(parameters.values())) for of in (loss, expected)), strict=True
    ):
        assert_close(one, other, tolerance=1e-10)
    assert_close(model.eval()(ids), loss_of(model.net, ids, 0.0), tolerance=1e-10)


def padded(texts, left=False):
    rows = torch.full((len(texts), max(map(len, texts))), 3)
    mask = torch.zeros_like(rows, dtype=torch.bool)
    for row, real, text in zip(rows, mask, texts, strict=True):
        place = slice(len(row) - len(text), None) if left else slice(len(text))
        row[place], real[place] = text, True
    return rows, mask


@pytest.mark.parametrize('how', ['lens', 'mask', 'left', 'start', 'ignored', 'documents'])
def test_padding_and_documents(how):
    model = language(dict(use_rmsnorm=True))
    texts = [ids_of(n, seed=n, vocab=VOCAB) for n in (7, 1, 4, 2)]
    ids, mask = padded(texts, how in ('left', 'start'))
    inputs = {'lens': dict(lens=mask.sum(dim=1)), 'start': dict(seq_start_pos=(~mask).sum(dim=1))}.get(
        how, dict(mask=mask)
    )
    if how == 'ignored':
        ids, inputs = ids.masked_fill(~mask, -100), {}
    if how == 'documents':
        ids, inputs = torch.cat(texts)[None], dict(document_ids=torch.tensor([[0] * 7 + [4] + [2] * 4 + [1] * 2]))
    assert_close(model(ids, **inputs), loss_of(model.net, texts), tolerance=1e-10)


def test_padding_inside_is_inert_and_no_target():
    model, ids = language(), ids_of(2, 8, vocab=VOCAB)
    mask = torch.ones_like(ids, dtype=torch.bool)
    mask[0, 3] = mask[1, 4:6] = False
    others = torch.where(mask, ids, ids_of(2, 8, seed=5, vocab=VOCAB))
    assert_close(model(ids, mask=mask), model(others, mask=mask), tolerance=1e-12)
    targets = []
    logits = model.net(ids, mask=mask, return_intermediates='past', return_mtp=True)[1].mtp_readouts
    for k, readout in enumerate(logits, start=1):
        for row in range(2):
            targets += [(k, row, i) for i in range(7 - k) if mask[row, i : i + k + 2].all()]
        assert readout.hidden.shape == (2, 8, DIM)
    assert [len([one for one in targets if one[0] == k]) for k in (1, 2)] == [1 + 2 + 2, 0 + 1 + 1]
    expected = model.eval()(ids, mask=mask)
    for k, readout in enumerate(logits, start=1):
        own = [(row, i) for at, row, i in targets if at == k]
        scores = model.net.to_logits(readout.hidden)
        losses = [F.cross_entropy(scores[row, i], ids[row, i + k + 1]) for row, i in own]
        expected = expected + 0.15 * sum(losses) / len(losses)
    assert_close(model.train()(ids, mask=mask), expected, tolerance=1e-10)


def test_labels_and_the_last_target():
    model, ids = language(), ids_of(2, 8, vocab=VOCAB)
    labels = ids.clone()
    labels[:, :5] = -100
    plain = model(ids, labels=labels)
    logits = model.net(ids, return_intermediates='past', return_mtp=True)[1].mtp_readouts
    scores = [model.net(ids), *(model.net.to_logits(one.hidden) for one in logits)]
    losses = [F.cross_entropy(one[:, 4 - k : 7 - k].mT, ids[:, 5:]) for k, one in enumerate(scores)]
    assert_close(plain, losses[0] + 0.15 * sum(losses[1:]), tolerance=1e-10)
    last = AutoregressiveWrapper(model.net, last_position_only=True)
    losses = [F.cross_entropy(one[:, 6 - k], ids[:, 7]) for k, one in enumerate(scores)]
    assert_close(last(ids), losses[0] + 0.15 * sum(losses[1:]), tolerance=1e-10)


def test_batches_add_up():
    model, ids = language(), ids_of(4, 7, vocab=VOCAB)
    whole = model(ids, num_items_in_batch=24)
    assert_close(whole, model(ids[:1], num_items_in_batch=24) + model(ids[1:], num_items_in_batch=24), tolerance=1e-12)
    assert_close(whole, model(ids), tolerance=1e-12)


@pytest.mark.parametrize('how', ['memory tokens', 'prepended', 'context', 'condition'])
def test_further_inputs(how):
    """Modules run on the tokens alone, with contexts and conditions of the stack."""
    stack = dict(context=dict(cross_attend=True), condition=dict(use_adaptive_rmsnorm=True, dim_condition=6)).get(
        how, {}
    )
    model, ids = language(stack, num_memory_tokens=2 if how == 'memory tokens' else 0), ids_of(1, 6, vocab=VOCAB)
    inputs = dict(
        context=dict(context=vectors_of(1, 3, DIM).double()),
        condition=dict(condition=vectors_of(1, 6).double()),
        prepended=dict(prepend_embeds=vectors_of(1, 2, DIM).double()),
    ).get(how, {})
    net = model.net
    if how in ('memory tokens', 'prepended'):
        found = net(ids, return_intermediates=True, **inputs)[1].layer_hiddens[-1][:, -6:]
        embeds = F.pad(net.token_emb(ids)[:, 1:], (0, 0, 0, 1))
        expected = net.mtp[0].norm(net.mtp[0](embeds, found))
        out = net(ids, return_intermediates='past', return_mtp=True, **inputs)[1].mtp_readouts[0].hidden
        assert_close(out, expected, tolerance=1e-10)
        start = dict(seq_start_pos=torch.tensor([2]))
        left = net(F.pad(ids, (2, 0)), return_intermediates='past', return_mtp=True, **start, **inputs)[1]
        assert_close(left.mtp_readouts[0].hidden[:, 2:], out, tolerance=1e-10)
        return
    assert_close(model(ids, **inputs), loss_of(net, ids, **inputs), tolerance=1e-10)


def test_a_block_is_like_the_last_one():
    net = net_of(dict(attn_kv_heads=(1, 2), ff_mult=(1, 3), custom_layers=tuple('aaff'), depth=None))
    block = net.mtp[0].block
    assert block.layer_types == ('a', 'f') and block.layers[0][1].to_k.weight.shape[0] == 2 * 8
    assert block.layers[1][1].ff[2].weight.shape == (DIM, 3 * DIM) and block.causal
    other = net_of(mtp_block=dict(ff_mult=1, depth=2)).mtp[0].block
    assert len(other.layers) == 4 and other.layers[1][1].ff[2].weight.shape == (DIM, DIM)
    assert not hasattr(net_of(mtp_depth=0), 'mtp')


def test_refusals():
    for stack, flags, words in (
        ({}, dict(kind=Encoder), '`mtp_depth` needs a causal stack: got a Encoder'),
        ({}, dict(kind=PrefixDecoder), '`mtp_depth` needs a causal stack: got a PrefixDecoder'),
        ({}, dict(return_only_embed=True), '`mtp_depth` cannot be combined with `return_only_embed`'),
        ({}, dict(recycling=True), '`mtp_depth` cannot be combined with `recycling`'),
        ({}, dict(mtp_block=dict(haeds=3)), '`mtp_block` must give other keywords.*`haeds`.*`heads`'),
        ({}, dict(mtp_block=3), '`mtp_block` must be'),
        ({}, dict(mtp_depth=-1), '`mtp_depth` must be'),
        ({}, dict(mtp_hidden='last'), '`mtp_hidden` must be'),
        ({}, dict(mtp_loss_weight=-1.0), '`mtp_loss_weight` must be'),
    ):
        with pytest.raises(ConfigError, match=words):
            net_of(stack, **flags)
    net, ids = net_of(), ids_of(2, 5, vocab=VOCAB)
    with pytest.raises(ValueError, match='`return_mtp` needs `return_intermediates`'):
        net(ids, return_mtp=True)
    cache = net(ids, return_intermediates=True)[1]
    with pytest.raises(ValueError, match="`return_mtp` must be 'hidden' with a cache"):
        net(ids, cache=cache, input_not_include_cache=True, return_intermediates='past', return_mtp=True)
    plain, model = language(mtp_depth=0), language()
    for wrapper, options, words in (
        (plain, {}, "`draft='mtp'` needs a model with `mtp_depth`"),
        (model, dict(cache_kv=False), "`draft='mtp'` needs a cache"),
    ):
        with pytest.raises(ValueError, match=words):
            wrapper.speculative(ids, 4, 'mtp', **options)


@pytest.mark.parametrize(
    'stack', [dict(custom_layers=('a', 'r', 'f'), depth=None, recurrent_module='ssm')], ids=['ssm']
)
def test_states_that_cannot_go_back_are_refused(stack):
    model, ids = language(stack), ids_of(2, 5, vocab=VOCAB)
    assert model(ids).isfinite()
    with pytest.raises(
        ValueError, match=r"`draft='mtp'` needs a cache that can go back, .* holds the running state `1.recurrent"
    ):
        model.speculative(ids, 4, 'mtp')


# drafts


MODELS = {
    'one': dict(mtp_depth=1),
    'three': dict(mtp_depth=3, mtp_hidden='normed'),
    'memory tokens': dict(num_memory_tokens=2),
    'absolute': dict(stack=dict(rotary_pos_emb=False), max_seq_len=40),
    'alibi': dict(stack=dict(rotary_pos_emb=False, alibi_pos_bias=True)),
    'window': dict(stack=dict(attn_max_attend_past=3)),
    'short': dict(max_seq_len=9),
    'heads': dict(num_output_heads=2),
    'mixture': dict(mixture_of_softmax=True),
}
PROMPTS = dict(unequal=[ids_of(n, seed=n, vocab=VOCAB) for n in (5, 1, 3)], several=ids_of(2, 4, vocab=VOCAB))


@pytest.mark.parametrize('name', MODELS)
def test_greedy_tokens_are_those_of_generate(name):
    model = language(**MODELS[name])
    for prompts in PROMPTS.values():
        expected = model.generate(prompts, 12, **GREEDY)
        for count in (1, 4):
            tokens, stats = model.speculative(prompts, 12, 'mtp', count, return_stats=True, **GREEDY)
            assert torch.equal(tokens, expected) and stats.guessed >= stats.accepted
    assert diverse(expected)


def draft_by_hand(net, ids, count):
    """The drafts of a text (t), without a cache: each module on its whole input."""
    hidden, intermediates = net(ids[None, :-1], return_embeddings=True, return_intermediates=True)
    states = intermediates.layer_hiddens[-1][:, -len(ids) + 1 :] if net.mtp_hidden == 'stream' else hidden
    streams, ids = [states], ids.clone()
    for j in range(count):
        if j < len(net.mtp):
            k = j
            embeds = net.token_emb(ids[None, k + 1 :])
            streams.append(net.mtp[k](embeds, streams[-1][:, : embeds.shape[1]]))
            given = streams[-2]
        else:
            k = len(net.mtp) - 1
            given = torch.cat((given, streams[-1][:, -1:]), dim=1)
            embeds = net.token_emb(ids[None, k + 1 :])
            streams[-1] = net.mtp[k](embeds, given)
        best = net.to_logits(net.mtp[k].norm(streams[-1][:, -1]))
        best = best[0] if isinstance(best, tuple) else best
        ids = torch.cat((ids, best.argmax(dim=-1)))
    return ids[len(ids) - count :]


@pytest.mark.parametrize('name', ['one', 'three', 'absolute', 'alibi', 'window'])
def test_drafts_are_those_of_modules_without_a_cache(name, monkeypatch):
    model, seen, plain = language(**MODELS[name]), [], Draft.guess

    def spy(self, state, count):
        found = plain(self, state, count)
        seen.append((state.ids, state.pads, found[0], state.done))
        return found

    monkeypatch.setattr(Draft, 'guess', spy)
    model.speculative(PROMPTS['unequal'], 12, 'mtp', 4, **GREEDY)
    assert len(seen) > 5 and any(pads is not None and pads.unique().numel() > 1 for _, pads, _, _ in seen)
    for ids, pads, guesses, done in seen:
        for row in (~done).nonzero().flatten().tolist():
            text = ids[row, 0 if pads is None else int(pads[row]) :]
            assert torch.equal(guesses[row], draft_by_hand(model.net.eval(), text, guesses.shape[1]))


@pytest.mark.costly
def test_a_trained_model_accepts_nearly_all_drafts():
    torch.manual_seed(0)
    stack = dict(dim=32, depth=2, heads=2, attn_dim_head=16, rotary_pos_emb=True, use_rmsnorm=True)
    net = TransformerWrapper(num_tokens=8, max_seq_len=0, mtp_depth=2, attn_layers=Decoder(**stack))
    model, period = AutoregressiveWrapper(net), torch.tensor([1, 5, 2, 2, 7, 3])
    optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
    for _ in range(60):
        starts = torch.randint(0, 6, (8, 1))
        loss = model(period[(starts + torch.arange(16)) % 6])
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    prompts = [period[(start + torch.arange(length)) % 6] for start, length in ((0, 9), (4, 4), (2, 6))]
    expected = model.generate(prompts, 24, **GREEDY)
    for count, share in ((2, 0.9), (4, 0.7)):  # after two drafts, the last module gets its own output
        tokens, stats = model.speculative(prompts, 24, 'mtp', count, return_stats=True, **GREEDY)
        assert torch.equal(tokens, expected)
        assert stats.accepted >= share * stats.guessed, stats
