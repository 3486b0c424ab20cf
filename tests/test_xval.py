"""Numbers beside tokens: the model against its formula, its loss against a hand sum, generation by loops."""

import math

import pytest
import torch
import torch.nn.functional as F
from oracles import assert_close, randn, randomised
from training_laws import fit

from x_transformers import Decoder, Encoder
from x_transformers.flags import ConfigError
from x_transformers.xval import XValAutoregressiveWrapper, XValTransformerWrapper

V, N, D, NUM = 7, 12, 16, 3
NAN = float('nan')


def net(stack=None, kind=Decoder, **keywords):
    layers = kind(**{**dict(dim=D, depth=2, heads=2, attn_dim_head=8), **(stack or {})})
    options = {**dict(num_tokens=V, max_seq_len=N, numerical_token_id=NUM), **keywords}
    return randomised(XValTransformerWrapper(attn_layers=layers, **options))


def wrapped(loss=None, **keywords):
    return XValAutoregressiveWrapper(net(**keywords), **(loss or {})).eval()


def ids(*shape, seed=0):
    x = torch.randint(0, V, shape, generator=torch.Generator().manual_seed(seed))
    return x.masked_fill(torch.rand(shape, generator=torch.Generator().manual_seed(seed + 1)) < 0.3, NUM)


def data(*shape, seed=0):
    """Ids, and numbers that are NaN where the token stands for none."""
    x = ids(*shape, seed=seed)
    return x, randn(*shape, seed=seed).masked_fill(x != NUM, NAN)


HOLES = torch.tensor([[True] * 9, [True, True, False, True, True, True, False, False, False]])


# the model


def formula(model, x, x_num):
    """Logits and numbers, token by token, from the weights."""
    w = model.state_dict()
    width = w['token_emb.emb.weight'].shape[1]
    rows = []
    for row, numbers in zip(x, x_num, strict=True):
        tokens = []
        for place, (token, value) in enumerate(zip(row.tolist(), numbers.tolist(), strict=True)):
            e = w['token_emb.emb.weight'][token] * (value if token == NUM else 1.0)
            if 'pos_emb.emb.weight' in w:
                e = e + w['pos_emb.emb.weight'][place] / math.sqrt(width)
            if 'project_emb.weight' in w:
                e = w['project_emb.weight'] @ e + w['project_emb.bias']
            tokens.append(e)
        rows.append(torch.stack([*w.get('memory_tokens', torch.zeros(0, D)), *tokens]))
    h = model.attn_layers(torch.stack(rows)).detach()[:, -x.shape[1] :]
    if 'to_logits.weight' in w:
        logits = h @ w['to_logits.weight'].T + w['to_logits.bias']
    else:
        logits = h @ w['token_emb.emb.weight'].T / math.sqrt(D)
    return logits, (h @ w['to_numerical_output.0.weight'].T + w['to_numerical_output.0.bias'])[..., 0]


MODELS = {
    'plain': {},
    'tied': dict(tie_embedding=True),
    'memory tokens': dict(num_memory_tokens=2),
    'no positions': dict(use_abs_pos_emb=False),
    'rotary': dict(stack=dict(rotary_pos_emb=True, rotary_emb_dim=8)),
    'V1 narrow embeddings': dict(emb_dim=6),
    'wide logits': dict(logits_dim=9),
}
models = pytest.mark.parametrize('keywords', MODELS.values(), ids=MODELS)


@models
def test_the_model_is_the_formula(keywords):
    model, (x, x_num) = net(**keywords), data(2, 9)
    logits, numbers = model(x, x_num)
    expected = formula(model, x, x_num)
    assert_close(logits, expected[0])
    assert_close(numbers, expected[1])
    other = model(x, x_num.nan_to_num(5.0))
    assert torch.equal(other[0], logits) and torch.equal(other[1], numbers)
    loss = logits.square().sum() + numbers.square().sum()
    for name, p in model.named_parameters():
        grad = torch.autograd.grad(loss, p, retain_graph=True)[0]
        assert grad.isfinite().all() and grad.abs().max() > 0, name


def test_v4_the_token_table_starts_from_a_deviation_of_one():
    torch.manual_seed(0)
    stack = Decoder(dim=64, depth=1, heads=2)
    model = XValTransformerWrapper(num_tokens=100, max_seq_len=N, numerical_token_id=0, attn_layers=stack)
    assert model.token_emb.emb.weight.std().item() == pytest.approx(1.0, rel=0.05)
    assert model.to_logits.bias is not None


@models
def test_what_stands_in_masked_tokens_does_not_matter(keywords):
    model, (x, x_num) = net(**keywords), data(2, 9)
    expected = model(x, x_num, mask=HOLES)
    x, x_num = x.masked_fill(~HOLES, NUM), x_num.masked_fill(~HOLES, 50.0)
    for ours, theirs in zip(model(x, x_num, mask=HOLES), expected, strict=True):
        assert_close(ours[HOLES], theirs[HOLES])


@pytest.mark.parametrize('memory', [None, 2])
def test_v3_the_mask_grows_with_what_stands_in_front(memory):
    model, (x, x_num), prefix = net(num_memory_tokens=memory), data(2, 9), randn(2, 3, D)
    logits, numbers = model(x, x_num, prepend_embeds=prefix, mask=HOLES)
    assert logits.shape == (2, 12, V) and numbers.shape == (2, 12)
    changed = model(x.masked_fill(~HOLES, 0), x_num, prepend_embeds=prefix, mask=HOLES)[0]
    assert_close(changed[:, 3:][HOLES], logits[:, 3:][HOLES])
    everything = torch.ones(2, 9, dtype=torch.bool)
    assert_close(model(x, x_num, prepend_embeds=prefix, mask=everything)[0], model(x, x_num, prepend_embeds=prefix)[0])


@models
def test_a_cache_changes_nothing(keywords):
    model, (x, x_num) = net(**keywords), data(2, 9)
    expected = model(x, x_num)
    (logits, numbers), cache = model(x[:, :4], x_num[:, :4], return_intermediates=True)
    found = [(logits, numbers)]
    (logits, numbers), cache = model(x[:, :7], x_num[:, :7], cache=cache, return_intermediates=True)
    found.append((logits, numbers))
    new = dict(cache=cache, input_not_include_cache=True)
    found.append(model(x[:, 7:], x_num[:, 7:], **new))
    for ours, theirs in zip(zip(*found, strict=True), expected, strict=True):
        assert_close(torch.cat(ours, dim=1), theirs)


def test_what_the_model_returns():
    model, (x, x_num) = net(max_mem_len=4), data(2, 9)
    embeds = model(x, x_num, return_embeddings=True)
    assert embeds.shape == (2, 9, D)
    (logits, _), mems = model(x, x_num, return_mems=True)
    assert [m.shape for m in mems] == [(2, 4, D)] * 2
    (again, _), maps = model(x, x_num, return_attn=True)
    assert [m.shape for m in maps] == [(2, 2, 9, 9)] * 2
    assert_close(again, logits)
    (with_mems, _), trace = model(x, x_num, mems=mems, return_intermediates=True)
    assert torch.equal(trace.logits, with_mems) and not torch.allclose(with_mems, logits)


# the loss


def by_hand(model, x, x_num, counts, weight=1.0):
    logits, numbers = model.net(x[:, :-1].clamp(min=0), x_num[:, :-1])
    total, found = 0.0, 0
    for b, i in counts.nonzero().tolist():
        target = x[b, i + 1].item()
        total -= logits[b, i].log_softmax(dim=-1)[target].item()
        total += weight * (numbers[b, i] - x_num[b, i + 1]).item() ** 2 if target == NUM else 0.0
        found += 1
    return total / found


@pytest.mark.parametrize('weight', [1.0, 0.3])
def test_loss_is_the_mean_over_the_next_tokens(weight):
    model, (x, x_num) = wrapped(dict(numerical_loss_weight=weight)), data(2, 9)
    everywhere = torch.ones(2, 8, dtype=torch.bool)
    loss, parts = model(x, x_num, return_loss_breakdown=True)
    assert loss.item() == pytest.approx(by_hand(model, x, x_num, everywhere, weight), rel=1e-9)
    assert parts.cross_entropy_loss.shape == parts.numerical_mse_loss.shape == (2, 8)
    assert_close((parts.cross_entropy_loss + weight * parts.numerical_mse_loss).mean(), loss)
    assert (parts.numerical_mse_loss[x[:, 1:] != NUM] == 0).all() and (parts.numerical_mse_loss > 0).any()
    loss.backward()
    assert all(p.grad.isfinite().all() for p in model.parameters())


def test_a_mask_names_the_targets():
    model, (x, x_num) = wrapped(), data(2, 9)
    right = torch.arange(9) < torch.tensor([9, 5])[:, None]
    expected = by_hand(model, x, x_num, right[:, 1:])
    assert model(x, x_num, mask=right).item() == pytest.approx(expected, rel=1e-9)
    changed = x.masked_fill(~right, NUM), x_num.masked_fill(~right, 9.0)
    assert model(*changed, mask=right).item() == pytest.approx(expected, rel=1e-9)
    # of the length of the input: the same for targets and input
    short = torch.arange(8) < torch.tensor([8, 5])[:, None]
    assert model(x, x_num, mask=short).item() == pytest.approx(by_hand(model, x, x_num, short), rel=1e-9)


@pytest.mark.parametrize('pad_value', [0, NUM])
def test_v2_ignored_tokens_are_padding_wherever_they_stand(pad_value):
    model, (x, x_num) = wrapped(dict(pad_value=pad_value)), data(2, 9)
    ignored = torch.zeros(2, 9, dtype=torch.bool)
    ignored[0, 4] = ignored[1, 0] = ignored[1, 8] = True
    padded = x.masked_fill(ignored, pad_value), x_num.masked_fill(ignored, 1.0)
    expected = by_hand(model, *padded, ~ignored[:, 1:])
    assert model(x.masked_fill(ignored, -100), x_num).item() == pytest.approx(expected, rel=1e-9)


def test_without_targets_the_loss_is_zero():
    model, (x, x_num) = wrapped(), data(2, 9)
    loss = model(torch.full_like(x, -100), x_num)
    loss.backward()
    assert loss.item() == 0.0 and all(p.grad is None or (p.grad == 0).all() for p in model.parameters())


# generation


def greedy(model, x, x_num, steps, window=N, **inputs):
    start = x.shape[1]
    for _ in range(steps):
        logits, numbers = model(x[:, -window:], x_num[:, -window:], **inputs)
        x = torch.cat((x, logits[:, -1:].argmax(dim=-1)), dim=1)
        x_num = torch.cat((x_num, numbers[:, -1:]), dim=1)
    return x[:, start:], x_num[:, start:].masked_fill(x[:, start:] != NUM, NAN)


def same(found, expected):
    assert torch.equal(found.sampled_token_ids, expected[0])
    assert torch.allclose(found.sampled_numbers, expected[1], equal_nan=True, rtol=1e-9)
    assert torch.equal(found.is_number_mask, expected[0] == NUM)


@models
@torch.no_grad()
def test_greedy_generation_is_full_recompute(keywords):
    model, (x, x_num) = wrapped(**{**keywords, 'logits_dim': None}), data(3, 4)
    expected = greedy(model.net, x, x_num, 8)
    for cache_kv in (True, False):
        same(model.generate(x, x_num, 8, temperature=0.0, cache_kv=cache_kv), expected)
        alone = model.generate(x[1], x_num[1], 8, temperature=0.0, cache_kv=cache_kv)
        same(alone, [t[1] for t in expected])


@pytest.mark.parametrize('stack', [{}, dict(rotary_pos_emb=True, rotary_emb_dim=8)], ids=['absolute', 'rotary'])
@torch.no_grad()
def test_generation_past_the_window(stack):
    model, (x, x_num) = wrapped(max_seq_len=6, stack=stack), data(2, 4)
    for cache in (dict(cache_kv=False), dict(slide_cache=False)):
        same(model.generate(x, x_num, 9, temperature=0.0, **cache), greedy(model.net, x, x_num, 9, window=6))


@pytest.mark.parametrize(
    'given', [dict(mask=torch.arange(6).expand(2, 6) != 2), dict(seq_start_pos=torch.tensor([3, 3]))]
)
def test_nothing_is_predicted_from_padding(given):
    model, (x, x_num), read = wrapped(), data(2, 6), []
    model.net.token_emb.register_forward_hook(lambda *own: read.append(own[-1]))
    (grad,) = torch.autograd.grad(model(x, x_num, **given), read)
    assert (grad[:, 2] == 0).all() and (grad[:, 3] != 0).any()


@pytest.mark.parametrize('keywords', [{}, dict(stack=dict(rotary_pos_emb=True, rotary_emb_dim=8))])
@torch.no_grad()
def test_prompts_of_unequal_length(keywords):
    model, (x, x_num), lens = wrapped(**keywords), data(3, 5), torch.tensor([5, 2, 3])
    found = model.generate(x, x_num, 6, temperature=0.0, prompt_lens=lens)
    for row, n in enumerate(lens.tolist()):
        expected = greedy(model.net, x[row : row + 1, :n], x_num[row : row + 1, :n], 6)
        assert torch.equal(found.sampled_token_ids[row], expected[0][0])
        assert torch.allclose(found.sampled_numbers[row], expected[1][0], equal_nan=True, rtol=1e-9)
    same(model.generate(x, x_num, 6, temperature=0.0, mask=torch.arange(5) < lens[:, None]), found)


@torch.no_grad()
def test_numbers_move_with_their_tokens_behind_the_padding():
    model, lens = wrapped(), torch.tensor([4, 2])
    x, x_num = torch.full((2, 4), NUM), torch.tensor([[1.0, -2.0, 0.5, 3.0], [2.5, -1.5, NAN, NAN]]).double()
    read = []
    model.net.register_forward_pre_hook(lambda _, args: read.append(args))
    model.generate(x, x_num, 1, temperature=0.0, prompt_lens=lens)
    ids, numbers = read[0]
    assert ids.tolist() == [[NUM] * 4, [0, 0, NUM, NUM]]
    assert numbers[0].tolist() == [1.0, -2.0, 0.5, 3.0] and numbers[1, 2:].tolist() == [2.5, -1.5]


@torch.no_grad()
def test_draws_follow_the_distribution_and_the_generator():
    model, (x, x_num) = wrapped(), data(1, 4)
    logits, numbers = model.net(x, x_num)
    many = [t.expand(4000, -1) for t in (x, x_num)]
    kept = dict(filter_logits_fn='top_k', filter_kwargs=dict(k=3), temperature=2.0)
    found = model.generate(*many, 1, **kept, generator=torch.Generator().manual_seed(0))
    values, best = logits[0, -1].topk(3)
    expected = torch.zeros(V).double().scatter(0, best, (values / 2).softmax(dim=-1))
    counts = F.one_hot(found.sampled_token_ids[:, 0], V).double().mean(dim=0)
    assert ((counts - expected).abs() < 0.04).all() and (counts[expected == 0] == 0).all()
    drawn = found.sampled_numbers[found.is_number_mask]
    assert torch.allclose(drawn, numbers[0, -1].expand_as(drawn), rtol=1e-9)
    again = model.generate(*many, 1, **kept, generator=torch.Generator().manual_seed(0))
    assert torch.equal(again.sampled_token_ids, found.sampled_token_ids)


def test_training_flags_come_back_and_inputs_stay():
    model, (x, x_num) = wrapped().train(), data(2, 4)
    before = x.clone(), x_num.clone()
    found = model.generate(x, x_num, 0)
    assert model.training and model.net.training
    assert all(t.shape == (2, 0) for t in found)
    model.generate(x, x_num, 3)
    assert torch.equal(x, before[0]) and torch.equal(x_num.isnan(), before[1].isnan())


# the rest


def test_refusals():
    model, (x, x_num) = wrapped(), data(2, 9)
    for call, error, words in (
        (lambda: model.net(x, x_num[:, 1:]), ValueError, r'`x_num` must '),
        (lambda: model.net(x, x > 2), TypeError, r'`x_num` must be a tensor of real numbers, got torch.bool'),
        (lambda: model.net(x + V, x_num), ValueError, r'`x` must .*got token ids from 7 to'),
        (lambda: model(x - 1, x_num), ValueError, r'`x` must .*got token ids from -1'),
        (lambda: model(x[:, :1], x_num[:, :1]), ValueError, r'n must be at least 2'),
        (lambda: model(x, x_num, mask=HOLES[:, :5]), ValueError, r'`mask` must .*got \(2, 5\)'),
        (lambda: model(x, x_num, cache=3), ValueError, r'`cache` cannot be given to the loss'),
        (lambda: model(x, x_num, nonsense=3), TypeError, r'unexpected input `nonsense`'),
        (lambda: model.generate(x, x_num[:, 1:], 3), ValueError, r'`start_numbers` must .*got \(2, 8\)'),
        (lambda: model.generate(x, x_num, -1), ValueError, r'`seq_len` must .*got -1'),
        (lambda: model.generate(x, x_num, 1, temperature=-1.0), ValueError, r'`temperature` must .*got -1.0'),
        (lambda: model.generate(x, x_num, 1, 'top_x'), ValueError, r"`filter_logits_fn` must .*got 'top_x'"),
        (lambda: net(numerical_token_id=V), ConfigError, r'`numerical_token_id` must be from 0 to 6, got 7'),
        (lambda: net(emb_dim=6, tie_embedding=True), ConfigError, r'`tie_embedding` needs embeddings as wide'),
        (lambda: net(l2norm_embed=True), ConfigError, r'unknown keyword `l2norm_embed`'),
        (lambda: wrapped(kind=Encoder), ValueError, r'`net` must be causal'),
        (lambda: XValAutoregressiveWrapper(Decoder(dim=8, depth=1)), ConfigError, r'`net` must be'),
    ):
        with pytest.raises(error, match=words):
            call()


@pytest.mark.slow
def test_it_learns_to_halve():
    """A number, a sign, and half the number or minus it: generated numbers are off by less than 0.05 of them."""
    torch.manual_seed(0)
    stack = Decoder(dim=32, depth=2, heads=2, attn_dim_head=16)
    around = XValTransformerWrapper(num_tokens=4, max_seq_len=3, numerical_token_id=NUM, attn_layers=stack)
    model = XValAutoregressiveWrapper(around, numerical_loss_weight=10.0)

    def rows(b):
        value, sign = torch.rand(b) + 0.5, torch.randint(0, 2, (b,))
        x = torch.stack((torch.full((b,), NUM), sign, torch.full((b,), NUM)), dim=1)
        return x, torch.stack((value, torch.full((b,), NAN), torch.where(sign == 0, value / 2, -value)), dim=1)

    fit(model, lambda: model(*rows(64)), 600, lr=2e-3, falls=True)
    x, x_num = rows(200)
    found = model.generate(x[:, :2], x_num[:, :2], 1, temperature=0.0)
    assert found.is_number_mask.all()
    assert (found.sampled_numbers[:, 0] - x_num[:, 2]).abs().mean() < 0.05
