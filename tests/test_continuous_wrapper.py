"""The wrapper of models of vectors: its losses against hand sums, its generation against loops that recompute.

`Drift` stands for a model: one exact formula of the vectors it may see, in float64, with a cache of its own.
"""

import math
from dataclasses import dataclass

import pytest
import torch
import torch.nn.functional as F
from law_cases import randomise
from torch import nn
from toy_nets import vectors_of as vectors

from x_transformers import Decoder, Encoder
from x_transformers.continuous import ContinuousAutoregressiveWrapper, ContinuousTransformerWrapper
from x_transformers.flags import ConfigError

DIM = 3


@dataclass
class Past:
    """A cache of `Drift`: the vectors themselves."""

    vectors: torch.Tensor
    num_seen_tokens: int
    num_prefix_tokens = 0

    @property
    def cache(self):
        return self

    @property
    def length(self):
        return self.vectors.shape[1]

    def keep_last(self, count):
        assert 0 <= count <= self.length
        return Past(self.vectors[:, self.length - count :], self.num_seen_tokens)


class Drift(nn.Module):
    """The next vector from a sum over the visible past, older ones weighing less."""

    def __init__(self, max_seq_len=None, probabilistic=False, absolute=False, can_cache=True, dim_out=DIM, seed=0):
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        self.max_seq_len, self.probabilistic = max_seq_len, probabilistic
        self.can_cache_kv, self.can_cache_kv_outside_max_seq_len = can_cache, not absolute
        self.to_out = nn.Parameter(
            torch.randn(1 + probabilistic, DIM, dim_out, generator=generator, dtype=torch.float64)
        )
        self.places = nn.Parameter(absolute * torch.randn(64, DIM, generator=generator, dtype=torch.float64))
        self.dropout = nn.Dropout(0.5)
        self.fed = []

    def forward(
        self,
        x,
        mask=None,
        context=None,
        seq_start_pos=None,
        cache=None,
        input_not_include_cache=False,
        return_intermediates=False,
    ):
        self.fed.append(tuple(x.shape))
        b, new, _ = x.shape
        before = 0 if cache is None else cache.num_seen_tokens
        start = torch.zeros(b, dtype=torch.long) if seq_start_pos is None else seq_start_pos
        vectors = x + self.places[(torch.arange(before, before + new) - start[:, None]).clamp(min=0)]
        if cache is not None:
            assert input_not_include_cache
            vectors = torch.cat((cache.vectors, vectors), dim=1)
        n = vectors.shape[1]
        real = torch.arange(n) >= start[:, None]
        real = real if mask is None else real & mask
        age = torch.arange(n)[:, None] - torch.arange(n)
        weight = torch.where(age >= 0, 0.8**age, 0.0) * real[:, None]
        state = self.dropout(weight.double() @ vectors)[:, n - new :]
        if context is not None:
            state = state + context[:, None]
        out = torch.stack([(2 * state).sin() @ w for w in self.to_out])
        out = torch.stack((out[0], out[1].exp())) if self.probabilistic else out[0]
        return (out, Past(vectors, before + new)) if return_intermediates else out


def wrapped(loss=None, **keywords):
    return ContinuousAutoregressiveWrapper(Drift(**keywords), **(loss or {})).eval()


def entries(prediction, target, kind):
    """The loss of every entry, from plain numbers."""

    def one(*numbers):
        if kind == 'nll':
            mean, variance, y = numbers
            return 0.5 * (math.log(max(variance, 1e-6)) + (y - mean) ** 2 / max(variance, 1e-6))
        mean, y = numbers
        return abs(mean - y) if kind == 'l1' else (mean - y) ** 2

    parts = [*prediction, target] if kind == 'nll' else [prediction, target]
    flat = [one(*numbers) for numbers in zip(*(part.flatten().tolist() for part in parts), strict=True)]
    return torch.tensor(flat, dtype=torch.float64).reshape(target.shape)


def mean_of(losses, rows):
    """The mean over the tokens that `rows` names, each averaged over its features."""
    found = [sum(losses[row, i].tolist()) / DIM for row, places in enumerate(rows) for i in places]
    return sum(found) / len(found)


KINDS = [('square', {}, {}), ('l1', dict(use_l1_loss=True), {}), ('nll', {}, dict(probabilistic=True))]
kinds = pytest.mark.parametrize('kind, loss, net', KINDS, ids=[kind for kind, _, _ in KINDS])


def test_even_channels_are_means_and_odd_ones_logarithms_of_variances():
    """As weights of checkpoints have it."""
    stack = Decoder(dim=8, depth=1, heads=1, attn_dim_head=8)
    net = ContinuousTransformerWrapper(dim_in=3, dim_out=3, probabilistic=True, attn_layers=stack).double()
    x = vectors(2, 4, 3)
    channels = net.project_out(net(x, return_embeddings=True))
    mean, variance = net(x)
    assert torch.equal(mean, channels[..., ::2]) and torch.equal(variance, channels[..., 1::2].exp())


# losses


@kinds
def test_loss_is_the_mean_over_the_next_vectors(kind, loss, net):
    model, x = wrapped(loss, **net), vectors(2, 5, DIM)
    losses = entries(model.net(x[:, :-1]), x[:, 1:], kind)
    assert model(x).item() == pytest.approx(losses.mean().item(), rel=1e-12)


@kinds
def test_padding_is_no_target(kind, loss, net):
    model, x, lens = wrapped(loss, **net), vectors(3, 6, DIM), torch.tensor([6, 2, 4])
    mask = torch.arange(6) < lens[:, None]
    losses = entries(model.net(x[:, :-1], mask=mask[:, :-1]), x[:, 1:], kind)
    expected = mean_of(losses, [range(5), range(1), range(3)])
    assert model(x, lens=lens).item() == pytest.approx(expected, rel=1e-12)
    assert model(x, mask=mask).item() == pytest.approx(expected, rel=1e-12)
    changed = x.masked_fill(~mask[..., None], 99.0)
    assert model(changed, lens=lens).item() == pytest.approx(expected, rel=1e-12)


def test_a_mask_with_holes_names_the_targets():
    model, x = wrapped(), vectors(2, 5, DIM)
    mask = torch.tensor([[True, False, True, True, False], [False, True, True, False, True]])
    losses = entries(model.net(x[:, :-1], mask=mask[:, :-1]), x[:, 1:], 'square')
    # both a target and the vector before it are real
    assert model(x, mask=mask).item() == pytest.approx(mean_of(losses, [[2], [1]]), rel=1e-12)


@kinds
def test_equal_weights_of_rows_average_over_features(kind, loss, net):
    model, x, lens = (
        wrapped({**loss, 'equal_loss_weight_batch': True}, **net),
        vectors(3, 6, DIM),
        torch.tensor([6, 2, 4]),
    )
    mask = torch.arange(6) < lens[:, None]
    losses = entries(model.net(x[:, :-1], mask=mask[:, :-1]), x[:, 1:], kind)
    rows = [mean_of(losses[row : row + 1], [range(n - 1)]) for row, n in enumerate(lens.tolist())]
    assert model(x, lens=lens).item() == pytest.approx(sum(rows) / 3, rel=1e-12)
    # a row without targets has no loss to weigh
    assert model(x, lens=torch.tensor([6, 1, 4])).item() == pytest.approx((rows[0] + rows[2]) / 2, rel=1e-12)
    # rows of the same length count alike anyway
    assert model(x).item() == pytest.approx(wrapped(loss, **net)(x).item(), rel=1e-12)


@pytest.mark.parametrize('equal', [True, False])
@pytest.mark.parametrize('rollout_steps', [1, 2])
def test_without_targets_the_loss_is_zero_with_zero_gradients(rollout_steps, equal):
    model = wrapped(dict(equal_loss_weight_batch=equal))
    loss = model(vectors(2, 4, DIM), rollout_steps, lens=torch.tensor([1, 1]))
    assert loss.item() == 0.0
    loss.backward()
    assert all((p.grad == 0).all() for p in model.parameters())


def test_a_tiny_variance_is_bounded():
    mean, target = vectors(1, 4, DIM), vectors(1, 4, DIM, seed=1)
    for variance in (0.0, 1e-9, 1e-6):
        prediction = torch.stack((mean, torch.full_like(mean, variance)))
        expected = entries(prediction, target, 'nll').mean().item()
        assert wrapped(probabilistic=True)._loss_of(prediction, target).item() == pytest.approx(expected, rel=1e-12)


def test_a_loss_of_ones_own():
    def per_token(prediction, target):
        return (prediction - target).abs().amax(dim=-1)

    x, lens = vectors(2, 5, DIM), torch.tensor([5, 3])
    model = wrapped(dict(loss_fn=per_token))
    losses = per_token(model.net(x[:, :-1]), x[:, 1:])
    assert model(x).item() == pytest.approx(losses.mean().item(), rel=1e-12)
    expected = (losses[0].sum() + losses[1, :2].sum()) / 6
    assert model(x, lens=lens).item() == pytest.approx(expected.item(), rel=1e-12)

    reduced = wrapped(dict(loss_fn=nn.MSELoss()))
    assert reduced(x).item() == wrapped()(x).item()
    with pytest.raises(ValueError, match=r'`loss_fn` must not reduce where `lens` or `mask` is given: .* shape \(\)'):
        reduced(x, lens=lens)


def test_keywords_reach_the_net():
    model, x, context = wrapped(), vectors(2, 5, DIM), vectors(2, DIM, seed=1)
    expected = entries(model.net(x[:, :-1], context=context), x[:, 1:], 'square').mean().item()
    assert model(x, context=context).item() == pytest.approx(expected, rel=1e-12)


# roll-outs


def rolled(model, row, start, steps, kind, **inputs):
    """The loss of `steps` predictions for one row (n d), of which the first `start` vectors are known."""
    seen, predictions = row[None, :start], []
    for _ in range(steps):
        predictions.append(model.net(seen, **inputs)[..., -1:, :])
        seen = torch.cat((seen, predictions[-1][0] if kind == 'nll' else predictions[-1]), dim=1)
    return entries(torch.cat(predictions, dim=-2), row[None, start : start + steps], kind).mean().item()


@kinds
@pytest.mark.parametrize('can_cache', [True, False])
@pytest.mark.parametrize('absolute', [True, False])
def test_a_rollout_sees_its_own_predictions(absolute, can_cache, kind, loss, net):
    model = wrapped(loss, absolute=absolute, can_cache=can_cache, **net)
    x, lens, steps = vectors(4, 7, DIM), torch.tensor([7, 5, 4, 3]), 3
    candidates = [
        [rolled(model, row, start, steps, kind) for start in range(1, n - steps + 1)]
        for row, n in zip(x, lens.tolist(), strict=True)
    ]
    # the row of three vectors is too short, and the third leaves no choice
    assert [len(c) for c in candidates] == [4, 2, 1, 0]
    possible = sorted((a + b + candidates[2][0]) / 3 for a in candidates[0] for b in candidates[1])
    found = set()
    for _ in range(60):
        loss_value = model(x, steps, lens=lens).item()
        nearest = min(possible, key=lambda value: abs(value - loss_value))
        assert loss_value == pytest.approx(nearest, rel=1e-9)
        found.add(possible.index(nearest))
    assert len(found) == len(possible), 'not every start is drawn'


@pytest.mark.parametrize('can_cache', [True, False])
def test_a_rollout_over_all_that_is_there(can_cache):
    model, x, context = wrapped(can_cache=can_cache), vectors(2, 5, DIM), vectors(2, DIM, seed=1)
    rows = [rolled(model, x[i], 1, 4, 'square', context=context[i : i + 1]) for i in range(2)]
    assert model(x, 4, context=context).item() == pytest.approx(sum(rows) / 2, rel=1e-12)


def test_a_rollout_is_not_cut_to_a_window():
    model, x = wrapped(max_seq_len=3), vectors(1, 7, DIM)
    possible = [rolled(model, x[0], start, 2, 'square') for start in range(1, 6)]
    for _ in range(20):
        loss = model(x, 2).item()
        assert min(abs(loss / p - 1) for p in possible) < 1e-9


def test_rows_much_too_short_for_a_rollout_count_for_nothing():
    model, x = wrapped(), vectors(2, 7, DIM)
    possible = [rolled(model, x[0], start, 5, 'square') for start in (1, 2)]
    for _ in range(20):
        loss = model(x, 5, lens=torch.tensor([7, 1])).item()
        assert min(abs(loss / p - 1) for p in possible) < 1e-9


def test_gradients_of_a_rollout_pass_through_its_predictions():
    x, grads = vectors(2, 5, DIM), []
    for can_cache in (True, False):
        model = wrapped(can_cache=can_cache)
        model(x, 4).backward()
        grads.append(model.net.to_out.grad)
    assert torch.allclose(grads[0], grads[1], rtol=1e-10)
    nudge = vectors(*model.net.to_out.shape, seed=2)

    def loss(step):
        with torch.no_grad():
            model.net.to_out += step * nudge
            value = model(x, 4).item()
            model.net.to_out -= step * nudge
        return value

    slope = (loss(1e-6) - loss(-1e-6)) / 2e-6
    assert (grads[0] * nudge).sum().item() == pytest.approx(slope, rel=1e-6)


# generation


def brute_force(net, start, steps, window=None, **inputs):
    out = start
    net.eval()
    with torch.no_grad():
        for _ in range(steps):
            read = out if not window else out[:, -window:]
            out = torch.cat((out, net(read, **inputs)[..., -1:, :]), dim=1)
    return out[:, start.shape[1] :]


@pytest.mark.parametrize('cache', [{}, dict(cache_kv=False), dict(slide_cache=False)], ids=str)
@pytest.mark.parametrize('absolute', [True, False])
@pytest.mark.parametrize('window', [None, 0, 1, 5])
def test_generation_is_brute_force(window, absolute, cache):
    model, start = wrapped(max_seq_len=window, absolute=absolute), vectors(2, 3, DIM)
    expected = brute_force(model.net, start, 9, window)
    assert torch.allclose(model.generate(start, 9, **cache), expected, rtol=1e-9)


def test_with_a_cache_only_new_vectors_are_read():
    model = wrapped()
    model.generate(vectors(2, 4, DIM), 3)
    assert model.net.fed == [(2, 4, DIM), (2, 1, DIM), (2, 1, DIM)]


def test_shapes_of_generation():
    model, start = wrapped(), vectors(2, 4, DIM)
    out = model.generate(start, 3)
    assert out.shape == (2, 3, DIM) and not out.requires_grad
    assert torch.allclose(model.generate(start[0], 3), out[0], rtol=1e-9)
    assert model.generate(start, 0).shape == (2, 0, DIM)
    assert torch.equal(start, vectors(2, 4, DIM))


def test_keywords_and_a_mask_go_with_generation():
    model, start, context = wrapped(), vectors(2, 4, DIM), vectors(2, DIM, seed=1)
    mask = torch.tensor([[True, False, True, True], [False, True, True, True]])
    out = start
    for step in range(5):
        new = model.net(out, context=context, mask=F.pad(mask, (0, step), value=True))[:, -1:]
        out = torch.cat((out, new), dim=1)
    for cache_kv in (True, False):
        found = model.generate(start, 5, cache_kv=cache_kv, context=context, mask=mask)
        assert torch.allclose(found, out[:, 4:], rtol=1e-9)


@pytest.mark.parametrize('window', [None, 5])
@pytest.mark.parametrize('cache_kv', [True, False])
def test_padding_before_a_start_is_not_seen(cache_kv, window):
    model, start = wrapped(max_seq_len=window, absolute=True), vectors(2, 4, DIM)
    pads = torch.tensor([0, 3])
    out = model.generate(start, 6, cache_kv=cache_kv, seq_start_pos=pads)
    for row in range(2):
        alone = model.generate(start[row, pads[row] :], 6, cache_kv=False)
        assert torch.allclose(out[row], alone, rtol=1e-9)


def test_temperature_scales_the_deviation():
    model, start = wrapped(probabilistic=True), vectors(1, 4, DIM)
    mean, variance = model.net(start)[..., -1, :]
    assert torch.allclose(model.generate(start, 1, temperature=0.0)[:, 0], mean, rtol=1e-12)
    many = start.expand(4000, -1, -1)
    for temperature in (0.5, 1.0, 2.0):
        generator = torch.Generator().manual_seed(0)
        out = model.generate(many, 1, temperature=temperature, generator=generator)[:, 0]
        deviation = temperature * variance[0].sqrt()
        assert ((out.mean(0) - mean[0]).abs() < 4 * deviation / math.sqrt(4000)).all()
        assert torch.allclose(out.std(0), deviation, rtol=0.05)


def test_draws_repeat_with_the_generator_and_do_not_depend_on_the_cache():
    model, start = wrapped(probabilistic=True), vectors(2, 4, DIM)
    first = model.generate(start, 5, generator=torch.Generator().manual_seed(1))
    again = model.generate(start, 5, generator=torch.Generator().manual_seed(1), cache_kv=False)
    assert torch.allclose(first, again, rtol=1e-8)
    assert not torch.allclose(first, model.generate(start, 5, generator=torch.Generator().manual_seed(2)))


def test_every_training_flag_comes_back():
    model = wrapped().train()
    model.net.dropout.eval()
    model.generate(vectors(1, 2, DIM), 2)
    assert model.training and model.net.training and not model.net.dropout.training
    with pytest.raises(TypeError):
        model.generate(vectors(1, 2, DIM), 2, nonsense=True)
    assert model.training and model.net.training and not model.net.dropout.training


# refusals


@pytest.mark.parametrize(
    'call, error, words',
    [
        (lambda m, x: m(x[0]), ValueError, r'`x` must '),
        (lambda m, x: m(x[:, :1]), ValueError, r'`x` must .*got \(2, 1, 3\)'),
        (lambda m, x: m(x.long()), TypeError, r'`x` must be a floating point tensor, got torch.int64'),
        (lambda m, x: m(x, 0), ValueError, r'`rollout_steps` must be an integer of at least 1, got 0'),
        (lambda m, x: m(x, 4), ValueError, r'`x` holds 4 vectors, `rollout_steps` of 4 needs 5'),
        (lambda m, x: m(x, lens=torch.tensor([1])), ValueError, r'`lens` must '),
        (lambda m, x: m(x, mask=torch.ones(2, 3).bool()), ValueError, r'`mask` must .*got \(2, 3\)'),
        (
            lambda m, x: m(x, mask=torch.ones(2, 4).bool(), lens=torch.tensor([1, 2])),
            ValueError,
            r'cannot both be given',
        ),
        (
            lambda m, x: m(x, 2, mask=torch.ones(2, 4).bool()),
            ValueError,
            r'`mask` cannot be given with `rollout_steps`',
        ),
        (lambda m, x: m(x, prepend_embeds=x), ValueError, r'`prepend_embeds` cannot be given to the loss'),
        (lambda m, x: m(x, return_hiddens=True), ValueError, r'`return_hiddens` cannot be given to the loss'),
        (
            lambda m, x: m.generate(x[0, 0], 1),
            ValueError,
            r'`start_tokens` must ',
        ),
        (lambda m, x: m.generate(x[:, :0], 1), ValueError, r'`start_tokens` must .*got \(2, 0, 3\)'),
        (lambda m, x: m.generate(x, -1), ValueError, r'`seq_len` must .*got -1'),
        (lambda m, x: m.generate(x, 1, temperature=-1.0), ValueError, r'`temperature` must .*got -1.0'),
        (lambda m, x: m.generate(x, 1, cache=3), ValueError, r'`cache` cannot be given to generate'),
    ],
)
def test_inputs_out_of_range_are_refused_before_computing(call, error, words):
    model = wrapped()
    with pytest.raises(error, match=words):
        call(model, vectors(2, 4, DIM))
    assert model.net.fed == []


def test_only_vectors_of_the_same_width_continue():
    model = ContinuousAutoregressiveWrapper(Drift(dim_out=5))
    for call in (lambda: model.generate(vectors(1, 2, DIM), 1), lambda: model(vectors(1, 4, DIM), 2)):
        with pytest.raises(
            ValueError, match=r'vectors of 5 features for vectors of 3: .* `dim_out` must be its `dim_in`'
        ):
            call()


def test_construction(logged):
    net = Drift(max_seq_len=7)
    model = ContinuousAutoregressiveWrapper(net)
    assert model.net is net and model.max_seq_len == 7
    assert all(name.startswith('net.') for name in model.state_dict())
    with pytest.raises(ConfigError, match=r'unknown keyword `use_l2_loss`.*did you mean `use_l1_loss`'):
        ContinuousAutoregressiveWrapper(net, use_l2_loss=True)
    with pytest.raises(ConfigError, match='`loss_fn` must be None or a callable, got 3'):
        ContinuousAutoregressiveWrapper(net, loss_fn=3)
    assert not logged
    ContinuousAutoregressiveWrapper(net, loss_fn=nn.MSELoss(), use_l1_loss=True)
    assert len(logged) == 1 and '`use_l1_loss` has no effect with a `loss_fn`' in logged[0]


# on real models


def real_model(*, limit=16, depth=2, around=None, **stack):
    torch.manual_seed(0)
    attn_layers = Decoder(dim=16, depth=depth, heads=2, attn_dim_head=8, **stack)
    net = ContinuousTransformerWrapper(
        dim_in=DIM, dim_out=DIM, max_seq_len=limit, attn_layers=attn_layers, **(around or {})
    )
    return ContinuousAutoregressiveWrapper(net).double().eval()


MODELS = {
    'absolute': {},
    'rotary': dict(rotary_pos_emb=True),
    'alibi': dict(alibi_pos_bias=True, around=dict(use_abs_pos_emb=False)),
    'memory tokens': dict(around=dict(num_memory_tokens=2)),
    'no limit': dict(rotary_pos_emb=True, limit=None),
    'probabilistic': dict(around=dict(probabilistic=True)),
    'memories between': dict(around=dict(num_memory_tokens=2, memory_tokens_interspersed_every=3)),
    'both': dict(
        rotary_pos_emb=True,
        around=dict(num_memory_tokens=1, memory_tokens_interspersed_every=2, probabilistic=True),
    ),
}
models = pytest.mark.parametrize('keywords', MODELS.values(), ids=MODELS)


def steps_of(net, start, steps, window=None):
    out = start
    with torch.no_grad():
        for _ in range(steps):
            new = net(out if not window else out[:, -window:])
            out = torch.cat((out, (new[0] if net.probabilistic else new)[:, -1:]), dim=1)
    return out[:, start.shape[1] :]


@models
def test_models_generate_alike_with_and_without_cache(keywords):
    model, start = real_model(**keywords), vectors(2, 4, DIM)
    expected = steps_of(model.net, start, 8)
    for cache_kv in (True, False):
        assert torch.allclose(model.generate(start, 8, temperature=0.0, cache_kv=cache_kv), expected, rtol=1e-9)


@models
def test_models_treat_a_padded_start_as_alone(keywords):
    model, start, pads = real_model(**keywords), vectors(2, 5, DIM), torch.tensor([0, 3])
    for cache_kv in (True, False):
        out = model.generate(start, 6, temperature=0.0, cache_kv=cache_kv, seq_start_pos=pads)
        for row in range(2):
            alone = steps_of(model.net, start[row : row + 1, pads[row] :], 6)[0]
            assert torch.allclose(out[row], alone, rtol=1e-9)


@models
def test_models_past_their_window(keywords):
    model, start = real_model(**{'limit': 6, **keywords}), vectors(2, 4, DIM)
    expected = steps_of(model.net, start, 9, window=model.max_seq_len)
    for cache in (dict(cache_kv=False), dict(slide_cache=False)):
        assert torch.allclose(model.generate(start, 9, temperature=0.0, **cache), expected, rtol=1e-9)


def test_a_sliding_cache_is_attention_with_a_window():
    model, start = real_model(rotary_pos_emb=True, limit=6), vectors(2, 4, DIM)
    windowed = real_model(rotary_pos_emb=True, limit=None, attn_max_attend_past=5)
    windowed.load_state_dict(model.state_dict())
    expected = steps_of(windowed.net, start, 9)
    assert not torch.allclose(expected, steps_of(model.net, start, 9, window=6), rtol=1e-6)
    assert torch.allclose(model.generate(start, 9), expected, rtol=1e-9)


@pytest.mark.parametrize('dropout', [0.5, (0.9, 0.0, 0.9, 0.9)], ids=str)
def test_a_rollout_in_training_leaves_layers_out(dropout):
    """Every reading draws which ones, and no reading has the past of a layer that was left out before."""
    model, x = real_model(layer_dropout=dropout).train(), vectors(2, 5, DIM)
    found = set()
    for seed in range(8):
        torch.manual_seed(seed)
        torch.rand(2)  # where the rows start
        expected = rolled_together(model.net, x, 4)
        torch.manual_seed(seed)
        assert model(x, rollout_steps=4).item() == pytest.approx(expected, rel=1e-9)
        found.add(expected)
    assert len(found) > 1


def rolled_together(net, x, steps):
    """The same for all rows in one call, each from its first vector."""
    seen = x[:, : x.shape[1] - steps]
    for _ in range(steps):
        seen = torch.cat((seen, net(seen)[:, -1:]), dim=1)
    return (seen - x)[:, -steps:].square().mean().item()


@models
def test_losses_of_models(keywords, monkeypatch):
    model, x, lens = real_model(**keywords), vectors(2, 7, DIM), torch.tensor([7, 4])
    kind = 'nll' if model.probabilistic else 'square'
    losses = entries(model.net(x[:, :-1]), x[:, 1:], kind)
    assert model(x, lens=lens).item() == pytest.approx(mean_of(losses, [range(6), range(3)]), rel=1e-9)
    # in a roll-out of all but one vector, there is one place to start
    expected = sum(rolled(model, x[row], 1, 6, kind) for row in range(2)) / 2
    assert model(x, 6).item() == pytest.approx(expected, rel=1e-9)

    found = []
    for can_cache in (model.net.can_cache_kv, False):
        monkeypatch.setattr(type(model.net), 'can_cache_kv', can_cache)
        torch.manual_seed(1)
        loss = model(x, 3, lens=lens)
        found.append((loss, *torch.autograd.grad(loss, list(model.parameters()), allow_unused=True)))
    for cached, plain in zip(*found, strict=True):
        assert (cached is None) == (plain is None)
        assert cached is None or torch.allclose(cached, plain, rtol=1e-9, atol=1e-12)


def test_models_that_see_the_answer_or_pool_are_refused():
    for stack, around, words in (
        (Encoder, {}, r'`net` must be causal, .* its stack is Encoder'),
        (Decoder, dict(average_pool_embed=True), r'`average_pool_embed` is set'),
    ):
        attn_layers = stack(dim=16, depth=1, heads=2, attn_dim_head=8)
        net = ContinuousTransformerWrapper(dim_in=DIM, dim_out=DIM, attn_layers=attn_layers, **around)
        with pytest.raises(ValueError, match=words):
            ContinuousAutoregressiveWrapper(net)


# convolutions in front

CONVS = {
    'halves': [(6, 3, 1, 1), (16, 3, 2, 1)],
    'wide steps': [(16, 5, 3, 2)],
    'no padding': [[4, 2, 1, 0], [16, 4, 2, 1]],
}
convs = pytest.mark.parametrize('stem', CONVS.values(), ids=CONVS)


def listener(stem, kind=Encoder, **around):
    attn_layers = kind(dim=16, depth=1, heads=2, attn_dim_head=8)
    sizes = {**dict(dim_in=DIM, dim_out=DIM, max_seq_len=12), **around}
    return randomise(ContinuousTransformerWrapper(attn_layers=attn_layers, conv_stem=stem, **sizes).double())


@convs
def test_convolutions_in_front_of_a_stack(stem):
    net, x, seen = listener(stem), vectors(2, 11, DIM), []
    net.attn_layers.register_forward_pre_hook(lambda module, args: seen.append(args[0]))
    out = net(x)
    for conv, (_, kernel, stride, padding) in zip(net.conv_stem, stem, strict=True):
        padded = F.pad(x, (0, 0, padding, padding))
        starts = range(0, padded.shape[1] - kernel + 1, stride)
        x = sum(padded[:, [at + k for at in starts]] @ conv.weight[..., k].mT for k in range(kernel)) + conv.bias
        x = x * (1 + (x / 2**0.5).erf()) / 2
    x = x + net.pos_emb.emb.weight[: x.shape[1]] * net.pos_emb.scale
    torch.testing.assert_close(seen[0], x, rtol=1e-12, atol=1e-12)
    assert out.shape == (2, x.shape[1], DIM)


@convs
def test_rows_of_other_lengths_through_convolutions(stem):
    net, x = listener(stem), vectors(6, 11, DIM)
    lens = torch.tensor([11, 10, 9, 8, 7, 4])
    hidden = torch.arange(11) >= lens[:, None]
    x[hidden] = float('nan')
    whole = net(x, lens=lens)
    assert torch.equal(net(x, mask=~hidden), whole)
    for row, length in enumerate(lens):
        alone = net(x[row : row + 1, :length])
        torch.testing.assert_close(whole[row : row + 1, : alone.shape[1]], alone, rtol=1e-10, atol=1e-10)
        real = net.conv_stem(x[row : row + 1], ~hidden[row : row + 1])[1]
        assert real.sum() == alone.shape[1] == real[0].int().argmin() or real.all()


SIDES = {
    'in front': [0, 0, 1, 1, 1, 1, 1, 1, 1],
    'in between': [1, 1, 0, 1, 1, 1, 1, 1, 0],
    'row by row': [0] + [1] * 8,
}


@pytest.mark.parametrize('side', SIDES)
@convs
def test_padding_of_convolutions_stands_behind(side, stem):
    """Anywhere else it moves what later tokens stand for."""
    net, x = listener(stem), vectors(2, 9, DIM)
    mask = torch.tensor([[1] * 9, SIDES[side]]) > 0
    for call in (lambda: net(x, mask=mask), lambda: net.conv_stem(x, mask), lambda: net.conv_stem.real(mask)):
        with pytest.raises(ValueError, match='`mask` hides entries in front of real ones'):
            call()


def test_inputs_that_do_not_go_with_convolutions():
    net, x = listener(CONVS['no padding']), vectors(1, 5, DIM)
    documents = torch.zeros(1, 5, dtype=torch.long)
    for inputs, words in (
        (
            dict(document_ids=documents),
            '`document_ids` cannot be combined with `conv_stem`: convolutions mix documents',
        ),
        (dict(seq_start_pos=documents[:, 0]), '`seq_start_pos` cannot be combined with `conv_stem`: give `mask`'),
        (dict(mask=documents[:, 1:] == 0), '`mask` must have shape (1, 5), got (1, 4)'),
        (dict(x=x[:, :2]), '`x` got 2 vectors, `conv_stem` needs at least 3'),
    ):
        with pytest.raises(ValueError) as error:
            net(**{'x': x, **inputs})
        assert words in str(error.value)
