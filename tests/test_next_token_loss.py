"""The loss of a language model against hand sums, and what its wrapper accepts."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from toy_nets import MODELS, ROTARY, VOCAB, History, Seen, ids_of, language_model, loss_by_hand, vectors_of, wrapped

from x_transformers import Decoder, Encoder, TransformerWrapper
from x_transformers.autoregressive_wrapper import AutoregressiveWrapper, hidden_keys, next_token_loss
from x_transformers.flags import ConfigError
from x_transformers.training.layer_losses import Targets
from x_transformers.training.losses import mean_of_rows, mean_or_zero, predictable, read_of, real_tokens

models = pytest.mark.parametrize('keywords', MODELS.values(), ids=MODELS)


def test_loss_is_the_mean_cross_entropy_of_the_next_token():
    model = wrapped().eval()
    x = ids_of(3, 7)
    assert model(x).item() == pytest.approx(loss_by_hand(model.net(x[:, :-1]), x[:, 1:]), rel=1e-12)
    assert model.net.fed[0] == (3, 7)
    assert model(x.int()).item() == model(x).item()


def test_ignored_ids_are_no_targets_and_padding_to_the_net():
    model = AutoregressiveWrapper(History(), ignore_index=-1, pad_value=2).eval()
    x = ids_of(2, 6)
    x[0, 3], x[1, 4:] = -1, -1
    fed = x.masked_fill(x == -1, 2)
    expected = loss_by_hand(model.net(fed[:, :-1]), x[:, 1:], {-1})
    assert model(x).item() == pytest.approx(expected, rel=1e-12)
    # one id for both, as most language models have it
    model = AutoregressiveWrapper(History(), ignore_index=0, pad_value=0).eval()
    expected = loss_by_hand(model.net(x[:1, :3]), torch.tensor([[x[0, 1], x[0, 2], 0]]), {0})
    assert model(torch.tensor([[*x[0, :3], 0]])).item() == pytest.approx(expected, rel=1e-12)


def test_lengths_end_the_targets():
    model = AutoregressiveWrapper(History(), pad_value=3).eval()
    x, lens = ids_of(3, 6), torch.tensor([6, 2, 4])
    marked = x.clone()
    marked[1, 2:], marked[2, 4:] = -100, -100
    assert model(x, lens=lens).item() == model(marked).item()
    assert model(x, lens=lens).item() != model(x).item()
    other = x.masked_fill(torch.arange(6) >= lens[:, None], 1)
    assert model(other, lens=lens).item() == model(x, lens=lens).item()
    with pytest.raises(ValueError, match=r'`lens` must '):
        model(x, lens=lens[:2])


def test_labels_say_what_is_predicted():
    model, x = wrapped().eval(), ids_of(3, 7)
    assert model(x, labels=x).item() == model(x).item()
    answer, lens = x.clone(), torch.tensor([7, 5, 6])
    answer[0, :4] = answer[1, 2] = -100  # read, and no target
    answer[2, 3] = (x[2, 3] + 1) % VOCAB
    expected = loss_by_hand(model.net(x[:, :-1]), answer[:, 1:], {-100})
    assert model(x, labels=answer).item() == pytest.approx(expected, rel=1e-12)
    shorter = answer.masked_fill(torch.arange(7) >= lens[:, None], -100)
    assert model(x, labels=answer, lens=lens).item() == model(x, labels=shorter, lens=lens).item()
    documents = torch.tensor([[0, 0, 1, 1, 1, 2, 2]]).expand(3, -1)
    net = language_model().eval()
    firsts = x.masked_fill(documents != documents.roll(1, 1), -100)
    assert net(x, labels=x, document_ids=documents).item() == net(x, labels=firsts, document_ids=documents).item()


def test_without_targets_the_loss_is_zero_with_zero_gradients():
    model = wrapped()
    loss = model(torch.full((2, 4), -100))
    assert loss.item() == 0.0
    loss.backward()
    assert all(p.grad is not None and (p.grad == 0).all() for p in model.parameters())


def test_prepended_vectors_are_no_targets():
    model = wrapped().eval()
    x, prefix = ids_of(2, 5), torch.randn(2, 3, 6, dtype=torch.float64)
    expected = loss_by_hand(model.net(x, prepend_embeds=prefix)[:, 3:-1], x[:, 1:])
    loss, (logits, _) = model(x, prepend_embeds=prefix, return_outputs=True)
    assert loss.item() == pytest.approx(expected, rel=1e-12)
    assert torch.equal(logits, model.net(x, prepend_embeds=prefix)[:, 3:-1])


def test_outputs_come_back():
    model = wrapped().eval()
    x = ids_of(2, 5)
    loss, (logits, inter) = model(x, return_outputs=True)
    assert loss.item() == model(x).item()
    assert torch.equal(logits, model.net(x)[:, :-1]) and isinstance(inter, Seen)


def test_losses_of_several_heads_are_averaged():
    model = wrapped(heads=3).eval()
    x = ids_of(2, 5)
    expected = sum(loss_by_hand(head[:, :-1], x[:, 1:]) for head in model.net(x)) / 3
    loss, (logits, _) = model(x, return_outputs=True)
    assert loss.item() == pytest.approx(expected, rel=1e-12)
    assert len(logits) == 3 and logits[2].shape == (2, 4, VOCAB)


def test_z_loss_is_added():
    plain, with_z = wrapped().eval(), AutoregressiveWrapper(History(), add_attn_z_loss=True).eval()
    x = ids_of(2, 5)
    extra = with_z.net.table.square().mean().item()
    assert with_z(x).item() == pytest.approx(plain(x).item() + extra, rel=1e-12)


class LogProbs(History):
    output_is_log_prob = True

    def forward(self, ids, **inputs):
        return super().forward(ids, **inputs).log_softmax(-1) + 0.25


def test_log_probabilities_are_not_normalised_again():
    x = ids_of(2, 5)
    plain, log_probs = wrapped().eval(), AutoregressiveWrapper(LogProbs()).eval()
    assert log_probs(x).item() == pytest.approx(plain(x).item() - 0.25, rel=1e-12)


@pytest.mark.parametrize('n, q, count', [(7, 0.15, 1), (7, 0.5, 3), (2, 0.9, 1), (9, 0.99, 8), (5, 0.1, 0)])
def test_forgetful_masking_hides_exactly_k_keys_and_never_the_first(n, q, count):
    rows = hidden_keys(ids_of(200, n), q)
    assert rows.dtype == torch.bool and rows.shape == (200, n)
    assert ((~rows).sum(-1) == count).all() and rows[:, 0].all()
    often = (~rows[:, 1:]).float().mean(0)
    assert (often - count / (n - 1)).abs().max() < 4 * 0.5 / math.sqrt(200)


def test_forgetful_masking_reaches_the_loss():
    model = AutoregressiveWrapper(History().eval(), mask_prob=0.5)
    x = ids_of(2, 6)
    torch.manual_seed(3)
    kept = hidden_keys(x, 0.5)
    torch.manual_seed(3)
    expected = loss_by_hand(model.net(x, self_attn_kv_mask=kept)[:, :-1], x[:, 1:])
    assert model(x).item() == pytest.approx(expected, rel=1e-12)
    torch.manual_seed(3)
    mine = torch.ones_like(kept)
    mine[:, 0] = False
    expected = loss_by_hand(model.net(x, self_attn_kv_mask=kept & mine)[:, :-1], x[:, 1:])
    assert model(x, self_attn_kv_mask=mine).item() == pytest.approx(expected, rel=1e-12)


def test_evaluation_hides_nothing():
    model, x = language_model(dict(mask_prob=0.5)), ids_of(2, 6, vocab=11)
    plain = AutoregressiveWrapper(model.net).eval()(x)
    assert model(x).item() == model(x).item() == plain.item()
    assert model.train()(x).item() != plain.item()


def test_a_prediction_counts_if_target_and_token_before_are_real():
    model = wrapped().eval()
    x, mask = ids_of(2, 5), torch.tensor([[True, False, True, True, True]] * 2)
    logits = model.net(x.masked_fill(~mask, 0), mask=mask)
    expected = loss_by_hand(logits[:, 2:-1], x[:, 3:])
    assert model(x, mask=mask).item() == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize('ahead', [1, 2, 9])
def test_which_predictions_count(ahead):
    real = torch.rand(3, 7, generator=torch.Generator().manual_seed(0)) < 0.6
    wanted = [[bool(row[at] and row[at - ahead]) for at in range(ahead, 7)] for row in real]
    assert predictable(real, ahead).tolist() == wanted
    tokens = torch.arange(21).view(3, 7)
    assert (Targets(tokens, -1, real).of(ahead - 1)[:, : max(7 - ahead, 0)] >= 0).tolist() == wanted


def test_which_tokens_are_real_by_all_that_is_given():
    x, mask = torch.zeros(2, 5), torch.tensor([[True, True, False, True, True]] * 2)
    lens, start = torch.tensor([5, 4]), torch.tensor([0, 1])
    assert real_tokens(x) is None and torch.equal(real_tokens(x, mask), mask)
    assert real_tokens(x, None, lens, start).int().tolist() == [[1, 1, 1, 1, 1], [0, 1, 1, 1, 0]]
    assert real_tokens(x, mask, lens, start).int().tolist() == [[1, 1, 0, 1, 1], [0, 1, 0, 1, 0]]
    assert read_of(real_tokens(x, mask, lens, start)).int().tolist() == [[1, 1, 0, 1], [0, 1, 0, 0]]


def test_means_leave_out_rows_of_padding_alone():
    losses, real = torch.tensor([1.0, 2.0, 4.0]), torch.tensor([[True, False], [False, False], [True, True]])
    assert mean_of_rows(losses, real) == 2.5 and mean_of_rows(losses, None) == mean_or_zero(losses) == losses.mean()
    nothing = torch.zeros(0, requires_grad=True)
    for found in (mean_of_rows(losses, real & False), mean_of_rows(nothing, None), mean_or_zero(nothing)):
        assert found == 0


@pytest.mark.parametrize('dtype', [torch.float16, torch.bfloat16])
def test_loss_of_half_precision_logits_is_summed_in_float32(dtype):
    # the sum of 40,000 losses of about 6 passes the range of float16 and the digits of bfloat16
    logits, targets = (3 * torch.randn(4, 10000, 9)).to(dtype), torch.randint(0, 9, (4, 10000))
    loss = next_token_loss(logits, targets, ignore_index=-100)
    exact = F.cross_entropy(logits.double().flatten(0, 1), targets.flatten())
    assert loss.dtype == torch.float32 and loss.item() == pytest.approx(exact.item(), rel=1e-3)


@pytest.mark.parametrize(
    'x, error, words',
    [
        (torch.zeros(2, 1).long(), ValueError, r'must be token ids \(b, n\) with n of at least 2, got shape \(2, 1\)'),
        (torch.zeros(4).long(), ValueError, r'`x` must .*got shape \(4,\)'),
        (torch.full((2, 4), 0.5), TypeError, r'`x` must hold integer token ids, got torch.float32'),
        ([[1, 2]], TypeError, r'`x` must be a tensor, got \[\[1, 2\]\]'),
    ],
)
def test_the_loss_refuses_other_inputs(x, error, words):
    model = wrapped()
    with pytest.raises(error, match=words):
        model(x)
    assert model.net.fed == []


@pytest.mark.parametrize('name', ['cache', 'return_hiddens', 'input_not_include_cache'])
def test_the_loss_refuses_keywords_that_change_what_the_net_returns(name):
    with pytest.raises(ValueError, match=f'`{name}` cannot be given to the loss'):
        wrapped()(ids_of(1, 3), **{name: True})


@models
def test_loss_of_models(keywords):
    model, x = language_model(**keywords), ids_of(2, 7, vocab=11)
    width = keywords.get('around', {}).get('emb_dim', 16)
    prefix, lens = vectors_of(2, 3, width), torch.tensor([7, 4])
    targets = x[:, 1:].masked_fill(torch.arange(6) >= lens[:, None] - 1, -100)
    logits = model.net(x)[:, :-1]
    assert model(x, lens=lens).item() == pytest.approx(loss_by_hand(logits, targets, {-100}), rel=1e-9)
    logits = model.net(x, prepend_embeds=prefix)[:, 3:-1]
    loss, (given, _) = model(x, lens=lens, prepend_embeds=prefix, return_outputs=True)
    assert loss.item() == pytest.approx(loss_by_hand(logits, targets, {-100}), rel=1e-9)
    assert given.shape == (2, 6, 11)
    assert model(x, prepend_embeds=prefix, excise_prepend_embeds=True).item() == pytest.approx(
        model(x, prepend_embeds=prefix).item(), rel=1e-12
    )


@pytest.mark.parametrize('keywords', [{}, dict(around=dict(num_memory_tokens=2)), dict(attn_num_mem_kv=2)], ids=str)
def test_forgetful_masking_hides_tokens_and_nothing_in_front(keywords):
    model, x = language_model(dict(mask_prob=0.5), **keywords).train(), ids_of(2, 6, vocab=11)
    prefix, memories = vectors_of(2, 3, 16), [vectors_of(2, 2, 16, seed=i) for i in (1, 2)]
    for given in ({}, dict(prepend_embeds=prefix), dict(mems=memories), dict(prepend_embeds=prefix, mems=memories)):
        torch.manual_seed(4)
        loss = model(x, **given)
        torch.manual_seed(4)
        kept = hidden_keys(x, 0.5)
        # a hidden key is one that has no influence: changing it changes nothing behind it, the loss excepted
        torch.manual_seed(4)
        place = (~kept[0]).nonzero()[0].item()
        other = x.clone()
        other[0, place] = (other[0, place] + 1) % 11
        torch.manual_seed(4)
        _, (before, _) = model(x, return_outputs=True, **given)
        torch.manual_seed(4)
        _, (after, _) = model(other, return_outputs=True, **given)
        assert torch.equal(before[0, place + 1 :], after[0, place + 1 :]) and torch.equal(before[1], after[1])
        shown = kept[0].nonzero()[1].item()
        other = x.clone()
        other[0, shown] = (other[0, shown] + 1) % 11
        torch.manual_seed(4)
        _, (after, _) = model(other, return_outputs=True, **given)
        assert not torch.allclose(before[0, shown + 1 :], after[0, shown + 1 :])
        for name in given:
            old = given[name]
            changed = [2.0 * t + vectors_of(16, seed=9) for t in (old if name == 'mems' else [old])]
            changed = changed if name == 'mems' else changed[0]
            torch.manual_seed(4)
            assert not torch.isclose(model(x, **{**given, name: changed}), loss), f'{name} is hidden'


def test_z_loss_of_a_model():
    x = ids_of(2, 6, vocab=11)
    plain, with_z = language_model(attn_flash=False), language_model(dict(add_attn_z_loss=True), attn_flash=False)
    _, inter = with_z.net(x, return_intermediates=True)
    sums = sum(maps.pre_softmax_attn.logsumexp(-1) for maps in inter.attn_intermediates)
    expected = plain(x).item() + 1e-4 * sums.square().sum(1).mean().item()
    assert with_z(x).item() == pytest.approx(expected, rel=1e-9) and with_z(x).item() > plain(x).item()
    # of real queries, wherever padding stands
    heavy = language_model(dict(add_attn_z_loss=True), attn_flash=False, **ROTARY)
    alone, mask = heavy(x[:1, :4]).item(), torch.arange(6)[None] < 4
    assert heavy(x[:1], mask=mask).item() == pytest.approx(alone, rel=1e-9)
    left = dict(mask=mask.flip(1), seq_start_pos=torch.tensor([2]))
    assert heavy(x[:1].roll(2, dims=1), **left).item() == pytest.approx(alone, rel=1e-9)


@pytest.mark.slow
def test_the_loss_compiles_to_one_graph():
    torch._dynamo.reset()
    model, x = language_model(**ROTARY), ids_of(2, 6, vocab=11)
    lens = torch.tensor([6, 3])
    compiled = torch.compile(model, fullgraph=True, backend='aot_eager')
    assert compiled(x, lens=lens).item() == pytest.approx(model(x, lens=lens).item(), rel=1e-9)


def test_attributes_that_users_read():
    net = History(max_seq_len=7)
    model = AutoregressiveWrapper(net, pad_value=3, ignore_index=-1)
    assert model.net is net and (model.pad_value, model.ignore_index, model.max_seq_len) == (3, -1, 7)
    assert all(name.startswith('net.') for name in model.state_dict())


@pytest.mark.parametrize(
    'keywords, words',
    [
        (dict(mask_prob=1.0), '`mask_prob` must be a probability from 0 up to, but not including, 1, got 1.0'),
        (dict(mask_prob=-0.1), '`mask_prob` must be a probability from 0 up to, but not including, 1, got -0.1'),
        (dict(pad_value='a'), "`pad_value` must be an integer, got 'a'"),
        (dict(ignore_index=None), '`ignore_index` must be an integer, got None'),
        (dict(mask_probs=0.1), 'unknown keyword `mask_probs` of AutoregressiveWrapper, did you mean `mask_prob`'),
    ],
)
def test_construction_refuses(keywords, words):
    with pytest.raises(ConfigError, match=words):
        AutoregressiveWrapper(History(), **keywords)


def test_nets_without_next_token_logits_are_refused():
    class Stack:
        causal = False

    net = History()
    net.attn_layers = Stack()
    with pytest.raises(ValueError, match=r'`net` must be causal, .* its stack is Stack, use Decoder'):
        AutoregressiveWrapper(net)
    with pytest.raises(ValueError, match=r'`net` must be a whole model with `max_seq_len`, .*got Linear'):
        AutoregressiveWrapper(nn.Linear(1, 1))
    with pytest.raises(ConfigError, match=r'`net` must be an instance of Module, got 3'):
        AutoregressiveWrapper(3)


@pytest.mark.parametrize(
    'stack, around, words',
    [
        (Encoder, {}, r'`net` must be causal, .* its stack is Encoder, use Decoder'),
        (Decoder, dict(return_only_embed=True), r'it has no head \(`return_only_embed` is set\)'),
        (Decoder, dict(average_pool_embed=True), r'one vector for the whole sequence \(`average_pool_embed` is set\)'),
        (Decoder, dict(attn_pool=True), r'it pools its output \(`attn_pool` is set\)'),
        (Decoder, dict(use_cls_token=True), r'from the cls tokens \(`use_cls_token` is set\)'),
    ],
)
def test_models_that_cannot_learn_the_next_token_are_refused(stack, around, words):
    net = TransformerWrapper(num_tokens=7, max_seq_len=8, attn_layers=stack(dim=8, depth=1, heads=1), **around)
    with pytest.raises(ValueError, match=words):
        AutoregressiveWrapper(net)
