"""Entmax against own loops: weights, loss, sampling, and a model that is trained and sampled with it."""

import itertools
import math

import pytest
import torch
import torch.nn.functional as F
from oracles import assert_close, randn
from torch.autograd import grad, gradcheck, gradgradcheck

from x_transformers import Attention, AutoregressiveWrapper, Decoder, TransformerWrapper
from x_transformers.flags import ConfigError
from x_transformers.generation import sampling
from x_transformers.generation.choice import TokenSampler
from x_transformers.generation.sampling import FILTER_LOGITS_FN, probabilities
from x_transformers.training import entmax_loss, entmax_measures, entmax_weights

ALPHAS = (1.2, 1.5, 1.9, 2.0)
VOCAB = 9


def entmax_of(row, alpha):
    """The definition: halve until the weights of a row (list) sum to 1."""
    z = [(alpha - 1) * (value - max(row)) for value in row]
    low, high = -1.0, 0.0
    for _ in range(200):
        middle = (low + high) / 2
        total = sum(max(value - middle, 0.0) ** (1 / (alpha - 1)) for value in z)
        low, high = (middle, high) if total >= 1 else (low, middle)
    p = [max(value - low, 0.0) ** (1 / (alpha - 1)) for value in z]
    return [one / sum(p) for one in p]


def loss_of(row, target, alpha):
    p = entmax_of(row, alpha)
    linear = sum(one * z for one, z in zip(p, row, strict=True) if one) - row[target]
    return linear + sum(one - one**alpha for one in p) / (alpha * (alpha - 1))


def by_rows(function, logits, *columns):
    return torch.tensor([function(*row) for row in zip(logits.tolist(), *columns, strict=True)], dtype=torch.float64)


@pytest.mark.parametrize('alpha', ALPHAS)
def test_weights_are_the_definition(alpha):
    for size, spread in ((1, 1.0), (7, 0.01), (40, 1.0), (40, 9.0)):
        logits = randn(6, size) * spread
        goal = by_rows(lambda row: entmax_of(row, alpha), logits)
        assert_close(entmax_weights(logits, alpha), goal, tolerance=1e-10)
        each = torch.full((6, 1), alpha, dtype=torch.double)
        assert_close(entmax_weights(logits, each), goal, tolerance=1e-10)
        assert_close(entmax_weights(logits.float(), alpha).double(), goal, tolerance=1e-5)
    assert entmax_weights(logits[:, :0], alpha).shape == (6, 0)


def test_weights_between_softmax_and_sparsemax():
    logits = randn(5, 11) * 2
    assert_close(entmax_weights(logits, 1), logits.softmax(dim=-1), tolerance=1e-15)
    assert_close(entmax_weights(logits, 1.0005), logits.softmax(dim=-1), tolerance=4e-3)
    ranked = logits.sort(dim=-1, descending=True).values
    for row, z, p in zip(logits, ranked, entmax_weights(logits, 2), strict=True):  # sparsemax, arXiv:1602.02068
        k = max(k for k in range(1, 12) if 1 + k * z[k - 1] > z[:k].sum())
        assert_close(p, (row - (z[:k].sum() - 1) / k).clamp(min=0), tolerance=1e-15)


def test_gradients_of_the_weights():
    alpha = torch.tensor([1.1, 1.5, 1.8], dtype=torch.double).view(1, 3, 1).requires_grad_()
    logits = (randn(1, 3, 4) * 2).requires_grad_()
    assert gradcheck(entmax_weights, (logits, alpha)) and gradgradcheck(entmax_weights, (logits, alpha))
    given = logits.detach(), alpha.detach()
    for at in (0, 1):  # in transforms the formula is differentiated

        def total(*given):
            return entmax_weights(*given).pow(3).sum()

        traced = torch.func.hessian(total, argnums=at)(*given)
        plain = torch.autograd.functional.hessian(lambda t, at=at: total(*given[:at], t, *given[at + 1 :]), given[at])
        assert_close(traced, plain, tolerance=1e-9)
    for number in (1.3, 2.0):
        assert gradcheck(lambda z, number=number: entmax_weights(z, number), logits)
    near, z = torch.tensor([1.0001], dtype=torch.double, requires_grad=True), randn(8)
    p = z.softmax(dim=-1)
    limit = -0.5 * p * (p.log().square() - (p * p.log().square()).sum())
    for j in range(3):
        (found,) = grad(entmax_weights(z, near)[j], near)
        assert abs(found.item() - limit[j].item()) < 1e-3


@pytest.mark.parametrize('alpha', ALPHAS)
def test_loss_is_its_formula(alpha):
    logits, target = (randn(12, VOCAB) * 2).requires_grad_(), torch.arange(12) % VOCAB
    found = entmax_loss(logits, target, alpha)
    goal = by_rows(lambda row, y: loss_of(row, y, alpha), logits.detach(), target.tolist())
    assert_close(found, goal, tolerance=1e-10)
    (slope,) = grad(found.sum(), logits)
    p = by_rows(lambda row: entmax_of(row, alpha), logits.detach())
    assert_close(slope, p - F.one_hot(target, VOCAB), tolerance=1e-10)
    assert gradcheck(lambda z: entmax_loss(z, target[:2], alpha), logits[:2].detach().requires_grad_())
    assert gradgradcheck(lambda z: entmax_loss(z, target[:2], alpha), logits[:2].detach().requires_grad_())
    traced = torch.func.grad(lambda z: entmax_loss(z, target, alpha).sum())(logits.detach())
    assert_close(traced, slope, tolerance=1e-10)


def test_loss_without_a_softmax_limit():
    logits, target = randn(6, VOCAB), torch.arange(6)
    cross_entropy = F.cross_entropy(logits, target, reduction='none')
    assert_close(entmax_loss(logits, target, 1), cross_entropy, tolerance=1e-12)
    assert_close(entmax_loss(logits, target, 1.0005), cross_entropy, tolerance=4e-3)


@pytest.mark.parametrize('alpha', (1.25, 1.5, 2.0))
def test_margin_from_which_the_loss_is_zero(alpha):
    logits = torch.tensor([[0.0, -1.0, -3.0]], dtype=torch.double).repeat(2, 1)
    logits[:, 0] = torch.tensor([-0.2, 1e-2], dtype=torch.double) - 1 + 1 / (alpha - 1)
    short, beyond = entmax_loss(logits, torch.zeros(2, dtype=torch.long), alpha).tolist()
    assert beyond == pytest.approx(0, abs=1e-15) and short > 1e-8


def test_tokens_without_a_logit():
    logits = randn(4, VOCAB)
    logits[:, 3:5] = -math.inf
    kept = logits[:, [0, 1, 2, 5, 6, 7, 8]]
    for alpha in ALPHAS:
        assert (entmax_weights(logits, alpha)[:, 3:5] == 0).all()
        target = torch.zeros(4, dtype=torch.long)
        assert_close(entmax_loss(logits, target, alpha), entmax_loss(kept, target, alpha))


def test_measures():
    logits, target = randn(10, VOCAB) * 2, torch.arange(10) % VOCAB
    p = entmax_weights(logits, 1.5)
    own = p[torch.arange(10), target]
    found = entmax_measures(logits, target, eps=1e-3)
    assert_close(found['perplexity'], torch.exp(-((own + 1e-3) / (1 + 1e-3 * VOCAB)).log().mean()))
    assert_close(found['sparsemax_score'], (own + (1 - p.square().sum(dim=-1)) / 2).mean())
    each = 0.0
    for row, y in zip(p.tolist(), target.tolist(), strict=True):
        for j, one in enumerate(row):
            middle = (one + (j == y)) / 2
            each += sum(a * math.log(a / middle) / 2 for a in (one, float(j == y)) if a)
    assert_close(found['js_divergence'], torch.tensor(each / 10, dtype=torch.double), tolerance=1e-10)


@pytest.mark.parametrize('alpha', (1, *ALPHAS))
def test_filter_is_the_distribution(alpha):
    logits = randn(3, 5, VOCAB) * 2
    assert_close(probabilities(sampling.entmax(logits, alpha)), entmax_weights(logits, alpha), tolerance=1e-12)
    assert FILTER_LOGITS_FN['entmax'] is sampling.entmax


def test_draws_have_the_distribution():
    torch.manual_seed(0)
    logits = torch.tensor([1.0, 0.6, 0.2, -1.5, -3.0])
    p = entmax_weights(logits, 1.5)
    kept = int((p > 0).sum())
    choice = TokenSampler(filter_logits_fn='entmax')
    drawn = torch.bincount(choice.draw(logits.expand(40_000, -1))[0], minlength=5)
    assert kept == 3 and (drawn[p == 0] == 0).all()
    wanted = 40_000 * p[:kept]
    assert ((drawn[:kept] - wanted).square() / wanted).sum() < 13.8  # chi squared of 2 degrees of freedom, p = .001


@pytest.mark.parametrize('filters', ['entmax', sampling.entmax, ['top_k', 'entmax'], ['entmax', 'min_p'], ('entmax',)])
def test_the_temperature_acts_before(filters):
    logits = randn(4, VOCAB) * 2
    keywords = dict(alpha=1.3)
    if isinstance(filters, list):
        keywords = [keywords if one == 'entmax' else {} if one == 'min_p' else dict(k=VOCAB) for one in filters]
    choice = TokenSampler(temperature=0.5, filter_logits_fn=filters, filter_kwargs=keywords)
    goal = entmax_weights(logits / 0.5, 1.3)
    if isinstance(filters, list) and 'min_p' in filters:
        goal = goal.where(goal >= 0.1 * goal.amax(dim=-1, keepdim=True), 0.0)
        goal = goal / goal.sum(dim=-1, keepdim=True)
    assert_close(choice.probabilities(logits)[0], goal, tolerance=1e-12)
    assert TokenSampler(temperature=0, filter_logits_fn=filters).temperature == 0
    plain = TokenSampler(temperature=0.5, filter_logits_fn='entmax').probabilities(logits)[0]
    assert_close(plain, entmax_weights(logits / 0.5, 1.5), tolerance=1e-12)


def net_of(**options):
    torch.manual_seed(0)
    stack = Decoder(dim=16, depth=1, heads=2, attn_dim_head=8, verbose=False)
    return TransformerWrapper(num_tokens=VOCAB, max_seq_len=16, attn_layers=stack, **options)


@pytest.mark.parametrize('heads', [1, 2])
def test_loss_of_the_wrapper(heads):
    model = AutoregressiveWrapper(net_of(num_output_heads=heads), entmax_loss_alpha=1.5).double()
    x = torch.randint(0, VOCAB, (3, 12))
    x[0, 8:] = -100
    logits = model.net(x.clamp(min=0))
    each = [entmax_loss(z[:, :-1], x[:, 1:].clamp(min=0)) for z in (logits if heads > 1 else (logits,))]
    goal = sum(one[x[:, 1:] >= 0].mean() for one in each) / heads
    for loss in (model(x), model(x, return_outputs=True)[0]):
        assert_close(loss, goal, tolerance=1e-12)
    head = next(p for name, p in model.named_parameters() if 'to_logits' in name)
    assert_close(*(grad(one, head, retain_graph=True)[0] for one in (model(x), goal)), tolerance=1e-12)
    assert_close(model(x, num_items_in_batch=7), goal * (x[:, 1:] >= 0).sum() / 7, tolerance=1e-12)


@pytest.mark.costly
def test_most_impossible_successors_get_probability_zero():
    """Tokens have 3 of 9 successors each. After 150 steps most of the others have exactly probability 0."""
    possible = torch.stack([(torch.arange(VOCAB) - i - 1) % VOCAB < 3 for i in range(VOCAB)])
    none = {}
    for alpha in (None, 1.5):
        model = AutoregressiveWrapper(net_of(), entmax_loss_alpha=alpha)
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
        for _ in range(150):
            steps = torch.randint(0, VOCAB, (32, 1)), 1 + torch.randint(0, 3, (32, 12))
            x = torch.cat(steps, dim=1).cumsum(dim=1) % VOCAB
            optimizer.zero_grad()
            model(x).backward()
            optimizer.step()
        p, wrong = entmax_weights(model.net(x)[:, :-1], alpha or 1), ~possible[x[:, :-1]]
        none[alpha] = (p[wrong] == 0).float().mean().item()
    assert none[1.5] > 0.6 and none[None] == 0, none
    tokens = model.eval().generate(x[:, :1], 15, filter_logits_fn='entmax', temperature=1.0)
    assert tokens.shape == (32, 15)


def layer_of(seed=0, **options):
    torch.manual_seed(seed)
    return Attention(dim=8, heads=3, dim_head=4, **options).double()


def weights_by_rows(layer, x, alphas, causal=False, mask=None):
    """The output of an attention layer by its definition, with an alpha for each head."""
    n = x.shape[1]
    q, k, v = (to(x).view(-1, n, 3, 4) for to in (layer.to_q, layer.to_k, layer.to_v))
    out = torch.zeros_like(q)
    for b, h, i in itertools.product(range(len(x)), range(3), range(n)):
        seen = [j for j in range(n) if (mask is None or mask[b, j]) and (j <= i or not causal)]
        sims = [(q[b, i, h] @ k[b, j, h]).item() / 2 for j in seen]
        for j, p in zip(seen, entmax_of(sims, alphas[h]) if seen else (), strict=True):
            out[b, i, h] += p * v[b, j, h]
    return layer.to_out(out.flatten(2))


@torch.no_grad()
@pytest.mark.parametrize('causal', [False, True])
def test_attention_with_an_alpha_per_head(causal):
    x = randn(2, 6, 8) * 3
    mask = torch.ones(2, 6, dtype=torch.bool)
    mask[1, :2] = False
    layer = layer_of(entmax_alpha='learned', causal=causal)
    layer.entmax_alpha.copy_(torch.tensor([-9.0, 0.3, 9.0]))
    alphas = (1 + layer.entmax_alpha.sigmoid()).clamp(min=1.01).tolist()
    goal = weights_by_rows(layer, x, alphas, causal, mask)
    found = layer(x, mask=mask)
    assert_close(found[mask], goal[mask], tolerance=1e-10)
    plain = layer_of(entmax_alpha=1.3, causal=causal)
    assert_close(plain(x), weights_by_rows(plain, x, (1.3,) * 3, causal), tolerance=1e-10)


def test_attention_begins_as_entmax15():
    x = randn(2, 6, 8)
    layer, plain = layer_of(entmax_alpha='learned'), layer_of(use_entmax15=True)
    assert_close(layer(x), plain(x), tolerance=1e-10)
    for given, options in ((1, {}), (1.5, dict(use_entmax15=True))):
        assert_close(layer_of(entmax_alpha=given)(x), layer_of(**options)(x), tolerance=1e-10)
    hidden = torch.zeros(6, 6, dtype=torch.bool).index_fill(0, torch.arange(3, 6), True)
    out, kept = layer(x, attn_mask=hidden, return_intermediates=True)
    assert (out[:, :3] == 0).all() and (kept.post_softmax_attn[:, :, :3] == 0).all()


def test_gradient_of_the_alphas_of_attention():
    x, layer = randn(2, 5, 8) * 3, layer_of(entmax_alpha='learned')
    layer.entmax_alpha.data = torch.tensor([-1.0, 0.0, 2.0], dtype=torch.double)

    def run(logits):
        return torch.func.functional_call(layer, {'entmax_alpha': logits}, (x,)).square().sum()

    (found,) = grad(run(layer.entmax_alpha), layer.entmax_alpha)
    for h in range(3):
        step = torch.zeros(3, dtype=torch.double).index_fill(0, torch.tensor(h), 1e-5)
        with torch.no_grad():
            slope = (run(layer.entmax_alpha + step) - run(layer.entmax_alpha - step)) / 2e-5
        assert abs(slope - found[h]) < 1e-6 * (1 + abs(slope))


@pytest.mark.parametrize(
    'other', [dict(flash=True), dict(use_entmax15=True), dict(sparse_topk=2), dict(custom_attn_fn=torch.sigmoid),
              dict(kernel='elu'), dict(sparse_pattern='sliding')],
)  # fmt: skip
def test_attention_refuses(other):
    with pytest.raises((ConfigError, ValueError), match='entmax_alpha'):
        layer = Attention(dim=8, heads=2, dim_head=4, entmax_alpha='learned', **other)
        layer(torch.randn(1, 4, 8))


def test_refusals():
    logits, target = randn(2, VOCAB), torch.zeros(2, dtype=torch.long)
    for call, words in (
        (lambda: entmax_loss(logits, target, 0.9), '`alpha` must be a number from 1 to 2, got 0.9'),
        (lambda: entmax_loss(logits, target[:1]), '`target` must have the shape'),
        (lambda: entmax_loss(logits, target + VOCAB), '`target`'),
        (lambda: sampling.entmax(logits, 2.5), '`alpha` must be a number from 1 to 2, got 2.5'),
        (lambda: sampling.entmax(logits, temperature=0), '`temperature` must be more than 0'),
        (
            lambda: TokenSampler(temperature=0.5, filter_logits_fn='entmax', filter_kwargs=dict(temperature=2.0)),
            '`temperature` cannot be combined',
        ),
        (lambda: TokenSampler(temperature=0.5, filter_logits_fn='entmax', filter_kwargs=dict(beta=2.0)), "got 'beta'"),
    ):
        with pytest.raises(ValueError, match=words):
            call()
    for call in (lambda: entmax_loss(target, target), lambda: entmax_loss(logits, logits)):
        with pytest.raises(TypeError, match='must be a'):
            call()
    for options in (dict(label_smoothing=0.1), dict(z_loss_weight=0.1)):
        with pytest.raises(ConfigError, match='`entmax_loss_alpha` cannot be combined with'):
            AutoregressiveWrapper(net_of(), entmax_loss_alpha=1.5, **options)
    with pytest.raises(ConfigError, match='`entmax_loss_alpha` cannot be combined with `mixture_of_softmax`'):
        AutoregressiveWrapper(net_of(mixture_of_softmax=True), entmax_loss_alpha=1.5)
    with pytest.raises(ConfigError, match='`entmax_loss_alpha` must be'):
        AutoregressiveWrapper(net_of(), entmax_loss_alpha=0.5)
    for alpha, options in ((1.5, {}), (None, dict(filter_logits_fn='entmax'))):
        model = AutoregressiveWrapper(net_of(), entmax_loss_alpha=alpha)
        with pytest.raises(ValueError, match='`amateur_model` cannot be combined with'):
            model.generate(torch.zeros(1, 2, dtype=torch.long), 2, amateur_model=net_of(), **options)
