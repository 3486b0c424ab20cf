"""What acts on attention scores and weights, against its formula written plainly; and the documents of a packed row."""

import math
from itertools import product

import pytest
import torch
import torch.nn.functional as F
from oracles import assert_close, assert_same, bools, linear, merge_heads, mix_heads, randn, randomised, split_heads

from x_transformers import Attention, CrossAttender, Decoder, Encoder, PrefixDecoder, TransformerWrapper
from x_transformers.attend import softmax
from x_transformers.flags import ConfigError, warn_once
from x_transformers.kernels.dense import lowest_value
from x_transformers.training import entmax_weights as entmax15

SHAPE = dict(dim=10, heads=4, dim_head=6)
STACK = dict(dim=16, depth=2, heads=4, attn_dim_head=8, ff_mult=2, verbose=False)


def plain(weights, x, context=None, *, causal=False, seen=None, acts=None):
    """1706.03762 with shared key heads; `acts` names what replaces a step: sim, logits, rows, normalise, weights, mix,
    values, out."""
    acts = acts or {}

    def step(name, value, *given):
        return acts[name](value, *given) if name in acts else value

    source = x if context is None else context
    q, k, v = (split_heads(linear(weights, f'to_{n}', t), 4) for n, t in (('q', x), ('k', source), ('v', source)))
    i, j = q.shape[-2], k.shape[-2]
    visible = torch.ones(len(x), 4, i, j, dtype=torch.bool)
    visible = visible.tril(j - i) if causal else visible
    visible = visible if seen is None else visible & seen
    sim = acts['sim'](q, k) if 'sim' in acts else q @ k.transpose(-1, -2) / math.sqrt(6)
    sim = step('logits', step('scores', sim))
    sim = step('rows', sim.masked_fill(~visible, -math.inf), q)
    if 'normalise' in acts:
        attn = acts['normalise'](sim)
    else:
        attn = exp_over_sum(sim)
    attn = step('mix', step('weights', attn, sim))
    out = step('out', attn @ step('values', v))
    out = out.masked_fill(~visible.any(-1, keepdim=True), 0)
    return linear(weights, 'to_out', merge_heads(out))


def exp_over_sum(sim, dim=-1):
    top = sim.amax(dim=dim, keepdim=True).detach()
    exp = torch.exp(sim - top.masked_fill(top.isinf(), 0))
    total = exp.sum(dim=dim, keepdim=True)
    return exp / total.masked_fill(total == 0, 1)


def layer(**flags):
    return randomised(Attention(**{**SHAPE, **flags}))


def check(flags, acts, tolerance=None, **call):
    """A layer, causal or not as `flags` say, against the formula, with and without hidden keys."""
    module = layer(**flags)
    x, causal = randn(2, 7, 10), flags.get('causal', False)
    for seen in (None, bools(2, 4, 7, 7, seed=1)):
        for act in [acts(module)] if callable(acts) else [acts]:
            assert_same(
                module,
                lambda x, s=seen: module(x, **({} if s is None else {'attn_mask': s}), **call),
                lambda w, x, s=seen, a=act: plain(w, x, causal=causal, seen=s, acts=a(w) if callable(a) else a),
                x,
                tolerance=tolerance,
            )
    return module


# the number of keys in the scores


@pytest.mark.parametrize('causal', [False, True])
@pytest.mark.parametrize('added', [0, 2])
def test_scalable_softmax(causal, added):
    """2501.19399: n^(s sim) over its sum, n the number of keys that a query sees."""
    module = layer(scalable_softmax=True, num_mem_kv=added, causal=causal)
    for seen in (None, bools(2, 4, 7, 7, seed=1), torch.arange(7)[:, None] > torch.arange(7).expand(2, 4, 1, 7)):
        given = {} if seen is None else {'attn_mask': seen}
        assert_same(
            module,
            lambda x, given=given: module(x, **given),
            lambda w, x, seen=seen: scalable_softmax_by_powers(w, x, causal, seen),
            randn(2, 7, 10),
        )


def scalable_softmax_by_powers(w, x, causal, seen):
    q, k, v = (split_heads(linear(w, f'to_{name}', x), 4) for name in 'qkv')
    if 'mem_k' in w:
        k, v = (torch.cat((w[name].expand(2, -1, -1, -1), t), dim=2) for name, t in (('mem_k', k), ('mem_v', v)))
    added, rows = k.shape[2] - 7, []
    for b, h, i in product(range(2), range(4), range(7)):
        keys = [*range(added)]
        keys += [
            added + j
            for j in range(7)
            if (not causal or j <= i) and (seen is None or seen.expand(2, 4, 7, 7)[b, h, i, j])
        ]
        if not keys:
            rows.append(0 * v[b, h, 0])
            continue
        sim = q[b, h, i] @ k[b, h, keys].T / math.sqrt(6)
        powers = len(keys) ** (w['scalable_softmax'][h] * sim)
        rows.append(powers / powers.sum() @ v[b, h, keys])
    return linear(w, 'to_out', merge_heads(torch.stack(rows).view(2, 4, 7, 6)))


def test_scalable_softmax_begins_as_a_logarithm_of_the_keys():
    module = Attention(**SHAPE, scalable_softmax=True, causal=True).double()
    _, inter = module(randn(2, 7, 10), return_intermediates=True)
    plain_one = Attention(**SHAPE, causal=True).double()
    plain_one.load_state_dict({name: t for name, t in module.state_dict().items() if name != 'scalable_softmax'})
    _, other = plain_one(randn(2, 7, 10), return_intermediates=True)
    count = torch.arange(1, 8, dtype=torch.double)[:, None]
    assert_close(inter.pre_softmax_attn.tril(), (other.pre_softmax_attn * count.log()).tril())


# choices of weights


def one_hot(sim):
    """Forward the best key, backward the softmax."""
    soft = exp_over_sum(sim)
    return soft + (F.one_hot(soft.argmax(-1), sim.shape[-1]).to(soft.dtype) - soft).detach()


@pytest.mark.parametrize('causal', [False, True])
def test_hard(causal):
    module = check(dict(hard=True, causal=causal), dict(normalise=one_hot))
    _, inter = module(randn(2, 7, 10), return_intermediates=True)
    assert (inter.post_softmax_attn.sort(-1).values == torch.eye(7, dtype=torch.double)[-1]).all()


@pytest.mark.parametrize('temperature', [0.3, 1.0, 4.0])
def test_gumbel_softmax_is_deterministic_in_evaluation(temperature):
    flags = dict(gumbel_softmax=True, gumbel_softmax_temp=temperature, causal=True)
    check({**flags, 'gumbel_softmax_hard': False}, dict(normalise=lambda sim: exp_over_sum(sim / temperature)))
    check(flags, dict(normalise=lambda sim: one_hot(sim / temperature)))
    module = layer(**flags)
    assert torch.equal(module(randn(2, 7, 10)), module(randn(2, 7, 10)))


@pytest.mark.parametrize('hard', [False, True])
def test_gumbel_noise_in_training(hard):
    """That of torch, drawn with the same seed; maps and log probabilities read later show the same draw."""
    module = layer(gumbel_softmax=True, gumbel_softmax_temp=0.6, gumbel_softmax_hard=hard, causal=True).train()
    torch.manual_seed(3)
    out, inter = module(randn(2, 7, 10), return_intermediates=True)
    logits = inter.pre_softmax_attn
    torch.manual_seed(3)
    drawn = F.gumbel_softmax(logits, tau=0.6, hard=hard)
    assert_close(inter.post_softmax_attn, drawn)
    assert_close(out, module.to_out(merge_heads(drawn @ inter.cached_kv[1])))


def test_gumbel_draws_follow_the_softmax():
    module = layer(gumbel_softmax=True).train()
    x = randn(1, 4, 10).expand(4000, -1, -1)
    with torch.no_grad():
        _, inter = module(x, return_intermediates=True)
        counted, wanted = inter.post_softmax_attn.mean(0), inter.pre_softmax_attn[0].softmax(-1)
    assert (counted - wanted).abs().max() < 0.04


@pytest.mark.parametrize('training', [False, True])
@pytest.mark.parametrize('temperature', [0.1, 1.0, 9.0])
@pytest.mark.parametrize('dtype', [torch.float32, torch.bfloat16])
def test_gumbel_of_rows_that_see_nothing(training, temperature, dtype):
    """Divided by a temperature below one, hidden logits would overflow."""
    module = layer(gumbel_softmax=True, gumbel_softmax_temp=temperature, causal=True).to(dtype).train(training)
    x = randn(2, 7, 10).to(dtype).requires_grad_()
    seen = torch.ones(2, 7, dtype=torch.bool)
    seen[0, :3] = False
    out, inter = module(x, context_mask=seen, return_intermediates=True)
    out.float().square().sum().backward()
    assert (out[0, :3] == 0).all() and out.isfinite().all() and x.grad.isfinite().all()
    assert (inter.post_softmax_attn[0, :, :3] == 0).all()


def entmax_by_bisection(sim):
    """The threshold t at which max(sim / 2 - t, 0)^2 sums to one."""
    half = sim / 2
    low, high = half.amax(-1, keepdim=True) - 1, half.amax(-1, keepdim=True)
    for _ in range(200):
        middle = (low + high) / 2
        over = (half - middle).clamp(min=0).square().sum(-1, keepdim=True) >= 1
        low, high = torch.where(over, middle, low), torch.where(over, high, middle)
    return (half - low).clamp(min=0).square()


@pytest.mark.parametrize('size', [1, 2, 7, 63, 500])
@pytest.mark.parametrize('spread', [0.01, 1.0, 30.0])
def test_entmax_by_bisection(size, spread):
    sim = randn(5, size) * spread
    ours = entmax15(sim)
    assert_close(ours, entmax_by_bisection(sim), tolerance=1e-9)
    assert_close(ours.sum(-1), torch.ones(5, dtype=torch.double))
    assert_close(entmax15(sim.float()).double(), ours, tolerance=1e-5)


def test_entmax_gradient():
    sim = randn(3, 6).requires_grad_()
    assert torch.autograd.gradcheck(entmax15, sim)
    wide = (randn(3, 6) * 6).requires_grad_()
    assert (entmax15(wide) == 0).any() and torch.autograd.gradcheck(entmax15, wide)
    assert torch.autograd.gradgradcheck(entmax15, wide)
    (ours,) = torch.autograd.grad(entmax15(wide).pow(3).sum(), wide)
    assert_close(ours, torch.func.grad(lambda z: entmax15(z).pow(3).sum())(wide.detach()))


@pytest.mark.parametrize('dtype', [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_entmax_gives_hidden_keys_nothing(dtype):
    sim = randn(4, 9).to(dtype)
    hidden = bools(4, 9, keep=0.4)
    hidden[:, 0], hidden[3] = False, True
    logits = sim.masked_fill(hidden, lowest_value(sim)).requires_grad_()
    weights = entmax15(logits)
    assert (weights[:3][hidden[:3]] == 0).all() and weights.isfinite().all()
    for row in range(3):
        assert_close(weights[row][~hidden[row]], entmax15(sim[row][~hidden[row]]))
    (grad,) = torch.autograd.grad(weights.square().sum(), logits)
    assert grad.isfinite().all() and (grad[:3][hidden[:3]] == 0).all()


def test_entmax_of_equal_logits():
    assert_close(entmax15(torch.zeros(2, 5, dtype=torch.double)), torch.full((2, 5), 0.2, dtype=torch.double))


@pytest.mark.parametrize('causal', [False, True])
def test_entmax_attention(causal):
    def normalise(sim):
        alone = sim.isinf().all(-1, keepdim=True)
        return entmax15(sim.masked_fill(alone, 0)).masked_fill(alone, 0)

    check(dict(use_entmax15=True, causal=causal), dict(normalise=normalise), tolerance=1e-8)


NORMALISERS = ('hard', 'gumbel_softmax', 'use_entmax15')


@pytest.mark.parametrize(
    'first, second',
    [
        (first, second)
        for first in (*NORMALISERS, 'sigmoid', 'sparse_topk', 'custom_attn_fn')
        for second in NORMALISERS
        if first != second
    ],
)
def test_one_normaliser_at_a_time(first, second):
    values = {'sparse_topk': 2, 'custom_attn_fn': torch.sigmoid}
    with pytest.raises(ConfigError, match='both choose the normalizer'):
        layer(**{first: values.get(first, True), second: True})


# similarities and values


@pytest.mark.parametrize('flash', [False, None, True])
@pytest.mark.parametrize('causal', [False, True])
def test_l2_distance(flash, causal):
    def distance(q, k):
        return -(q.unsqueeze(-2) - k.unsqueeze(-3)).square().sum(-1) / math.sqrt(6)

    check(dict(l2_distance=True, causal=causal, flash=flash), dict(sim=distance))


@pytest.mark.parametrize('flash', [False, True])
def test_l2_distance_to_a_zero_key(flash):
    """Its logit is minus the squared length of the query."""
    module = layer(l2_distance=True, add_zero_kv=True, num_mem_kv=1, flash=flash, causal=True)
    x = randn(2, 5, 10)
    _, inter = module(x, return_intermediates=True)
    q = split_heads(module.to_q(x), 4)
    assert_close(inter.qk_similarities[..., 0], -q.square().sum(-1) / math.sqrt(6))
    mem = (q.unsqueeze(-2) - module.mem_k.unsqueeze(1)).square().sum(-1)[..., 0]
    assert_close(inter.qk_similarities[..., 1], -mem / math.sqrt(6))


@pytest.mark.parametrize('flash', [False, None, True])
@pytest.mark.parametrize('causal', [False, True])
@pytest.mark.parametrize('bound', [15.0, 2.0])
def test_laser(flash, causal, bound):
    acts = dict(values=lambda v: torch.exp(bound * torch.tanh(v / bound)), out=lambda out: torch.log(out.clamp(1e-20)))
    check(dict(laser=True, laser_softclamp_value=bound, causal=causal, flash=flash), acts)


@pytest.mark.parametrize('flash', [False, True])
@pytest.mark.parametrize('flags', [{}, dict(add_zero_kv=True)])
def test_laser_of_rows_that_see_nothing(flash, flags):
    module = layer(laser=True, causal=True, flash=flash, **flags)
    module.to_out = torch.nn.Identity()
    x = randn(2, 7, 10).requires_grad_()
    seen = torch.ones(2, 7, dtype=torch.bool)
    seen[0, :3] = False
    out = module(x, context_mask=seen)
    out.square().sum().backward()
    assert (out[0, :3] == 0).all() and (out[0, 3:] != 0).all() and x.grad.isfinite().all()


@pytest.mark.parametrize('flash', [False, True])
@pytest.mark.parametrize('dtype', [torch.float16, torch.bfloat16])
@pytest.mark.parametrize('autocast', [False, True])
def test_laser_in_half_precision(flash, dtype, autocast):
    """exp(15) is beyond float16."""
    module = Attention(**SHAPE, laser=True, causal=True, flash=flash)
    with torch.no_grad():
        module.to_v.weight.mul_(100)
        wanted = module(randn(2, 7, 10).float())
        if not autocast:
            module, x = module.to(dtype), randn(2, 7, 10).to(dtype)
        with torch.autocast('cpu', dtype=dtype, enabled=autocast):
            out = module(randn(2, 7, 10).float() if autocast else x)
    assert out.dtype == dtype and out.isfinite().all()
    assert (out.float() - wanted).norm() / wanted.norm() < 0.05


# logits that depend on content


def gates(sim):
    return torch.sigmoid(sim)  # of minus infinity: none


def cope_oracle(weights, sim, q, soft=False, talking=False, mask=None):
    """p_ij counts the gates of the keys from j to the last; vectors at p are interpolated."""
    table = weights['attend.cope.pos_emb']
    gated = sim
    if talking:
        mixed = mix_heads(weights['attend.cope.talking_heads.weight'], sim.masked_fill(sim.isinf(), 0))
        gated = mixed.masked_fill(sim.isinf(), -math.inf)
    g, last = gates(gated), len(table) - 1
    rows = []
    for j in range(sim.shape[-1]):
        p = g[..., j:].sum(-1).clamp(max=last)
        if soft:
            near = torch.softmax(-(p[..., None] - torch.arange(last + 1)).abs() / 0.05, dim=-1)
        else:
            low, high = p.floor().long(), p.ceil().long()
            w = (p - low)[..., None]
            near = w * F.one_hot(high, last + 1) + (1 - w) * F.one_hot(low, last + 1)
        rows.append((q * (near @ table)).sum(-1))
    return sim + torch.stack(rows, dim=-1)


@pytest.mark.parametrize('soft', [False, True])
@pytest.mark.parametrize('talking', [False, True])
def test_cope(soft, talking):
    flags = dict(use_cope=True, cope_max_pos=4, cope_soft_onehot_pos=soft, cope_talking_heads=talking, causal=True)
    module = check(flags, lambda m: lambda w: dict(rows=lambda sim, q: cope_oracle(w, sim, q, soft, talking)))
    assert ('attend.cope.positions' in module.state_dict()) == soft
    fresh = Attention(**SHAPE, **flags)
    assert (fresh.attend.cope.pos_emb == 0).all() and fresh.attend.cope.pos_emb.shape == (4, 6)


@pytest.mark.parametrize('talking', [False, True])
def test_cope_does_not_count_masked_tokens(talking):
    """A row with a hidden token inside equals the row without it."""
    module = layer(use_cope=True, cope_max_pos=3, cope_talking_heads=talking, causal=True)
    x, keep = randn(1, 7, 10), torch.tensor([0, 1, 3, 4, 6])
    mask = torch.zeros(1, 7, dtype=torch.bool)
    mask[:, keep] = True
    assert_close(module(x, mask=mask)[:, keep], module(x[:, keep]))


def test_cope_reads_rotated_queries_before_distances():
    net = randomised(Decoder(**STACK, rotary_pos_emb=True, attn_use_cope=True, attn_l2_distance=True))
    x = randn(2, 6, 16)
    assert_close(net(x)[:, :4], net(x[:, :4]))


def selective_oracle(sim, q):
    """sim less what earlier rows have voted, with the first head, but for the first token and themselves."""
    votes = sim[:, 0].clamp(min=0)
    out = sim.clone()
    for i in range(sim.shape[-2]):
        for j in range(1, sim.shape[-1]):
            against = sum((votes[:, earlier, j] for earlier in range(i) if earlier != j), torch.zeros(len(sim)))
            out[:, :, i, j] = sim[:, :, i, j] - against.unsqueeze(-1)
    return out


def test_selective():
    check(dict(selective=True, causal=True), dict(rows=selective_oracle))


def test_selective_among_padding():
    """Hidden tokens have no votes, and the first real token of a row is the one that cannot be hidden."""
    module = layer(selective=True, causal=True, num_mem_kv=2)
    x, keep = randn(1, 8, 10), torch.tensor([2, 3, 5, 6])
    mask = torch.zeros(1, 8, dtype=torch.bool)
    mask[:, keep] = True
    wanted = module(x[:, keep])
    assert_close(module(x, mask=mask)[:, keep], wanted)
    assert_close(module(x, context_mask=mask)[:, keep], wanted)
    assert not torch.allclose(layer(causal=True, num_mem_kv=2)(x[:, keep]), wanted)


def test_what_looks_back_needs_a_causal_layer():
    for flag in ('selective', 'use_cope'):
        with pytest.raises(ConfigError, match=f'`{flag}` needs `causal`'):
            layer(**{flag: True})
        with pytest.raises(ConfigError, match=f'`attn_{flag}` needs `causal`'):
            Encoder(**STACK, **{f'attn_{flag}': True})
        module = layer(**{flag: True}, causal=True)
        with pytest.raises(ValueError, match=f'`causal=False` cannot be combined with `{flag}`'):
            module(randn(2, 7, 10), causal=False)
        with pytest.raises(ValueError, match=f'`context` cannot be combined with `{flag}`'):
            module(randn(2, 7, 10), randn(2, 7, 10))
    assert Decoder(**STACK, attn_use_cope=True).can_cache_kv
    stack = Decoder(**STACK, attn_selective=True)
    assert not stack.can_cache_kv
    module = layer(selective=True, causal=True)
    _, inter = module(randn(2, 3, 10), return_intermediates=True)
    with pytest.raises(ValueError, match='cannot be cached'):
        module(randn(2, 1, 10), cache=inter)


# signs, sinks, deltas


def sunk(weights, signs=False):
    """The sink's logit joins the sum below the line."""
    sink = weights['attend.head_attn_sink'][None, :, None, None]

    def normalise(sim):
        extra = sink.abs() if signs else sink
        return exp_over_sum(torch.cat((extra.expand(*sim.shape[:-1], 1), sim), dim=-1))[..., 1:]

    return normalise


@pytest.mark.parametrize('causal', [False, True])
@pytest.mark.parametrize('sink', [False, True])
def test_cog_signed(causal, sink):
    def acts(weights):
        kept = {}

        def logits(sim):
            kept['signs'] = sim.sign()
            return sim.abs()

        more = dict(normalise=sunk(weights, True)) if sink else {}
        return dict(logits=logits, weights=lambda attn, _: attn * kept['signs'], **more)

    module = check(dict(cog_signed=True, head_learned_sink=sink, causal=causal), lambda m: acts)
    _, inter = module(randn(2, 7, 10), return_intermediates=True)
    maps = inter.post_softmax_attn
    assert maps.shape[-1] == 7 + sink
    if sink:
        assert (maps[..., 0].sign() == module.attend.head_attn_sink.sign()[:, None]).all()
    assert layer(cog_signed=True, laser=True)(randn(2, 7, 10)).isfinite().all()  # where it is below zero, cut


@pytest.mark.parametrize('causal', [False, True])
@pytest.mark.parametrize('mixed', [False, True])
def test_head_learned_sink(causal, mixed):
    def acts(weights):
        if not mixed:
            return dict(normalise=sunk(weights))
        matrix = weights['attend.post_softmax_talking_heads.weight']
        return dict(normalise=sunk(weights), mix=lambda attn: mix_heads(matrix, attn))

    module = check(dict(head_learned_sink=True, post_talking_heads=mixed, causal=causal), lambda m: acts)
    seen = torch.ones(2, 7, dtype=torch.bool)
    seen[0, :2] = False
    _, inter = module(randn(2, 7, 10), context_mask=seen, return_intermediates=True)
    assert inter.pre_softmax_attn.shape == inter.post_softmax_attn.shape == (2, 4, 7, 8)
    if causal:
        assert (inter.post_softmax_attn[0, :, :2] == 0).all()
        assert_close(inter.post_softmax_attn[0, :, 2:].sum(-1), torch.ones(4, 5, dtype=torch.double))
    assert (Attention(**SHAPE, head_learned_sink=True).attend.head_attn_sink == 0).all()


def test_residual_logits_come_without_the_sink():
    """The next layer gets the logits of the keys alone."""
    net = randomised(Decoder(**STACK, residual_attn=True, attn_head_learned_sink=True, attn_add_zero_kv=True))
    _, trace = net(randn(2, 5, 16), return_hiddens=True)
    first, second = trace.attn_intermediates
    handed = first.pre_softmax_attn[..., 1:]
    assert handed.shape[-1] == 6
    module, x = net.layers[2][1], net.layers[2][0][0](trace.layer_hiddens[2])
    q, k = (split_heads(t, 4) for t in (module.to_q(x), module.to_k(x)))
    own = F.pad(q @ k.transpose(-1, -2) / math.sqrt(8), (1, 0))
    assert_close(second.qk_similarities, own + handed.masked_fill(handed <= lowest_value(handed), 0))


@pytest.mark.parametrize('flags', [dict(attn_pre_scale_post_talking_heads=True), dict(attn_gumbel_softmax=True)])
def test_residual_logits_with_hidden_keys_stay_finite(flags):
    net = randomised(Decoder(**STACK, residual_attn=True, **flags), scale=2.0).float()
    x = randn(2, 5, 16).float().requires_grad_()
    out = net(x, seq_start_pos=torch.tensor([0, 3]))
    out.sum().backward()
    assert out.isfinite().all() and x.grad.isfinite().all()


def test_attn_delta():
    delta = randn(2, 4, 7, 7, seed=3)
    for flash in (False, None, True):
        check(dict(flash=flash, causal=True), dict(weights=lambda attn, _: attn + delta), attn_delta=delta)
    for shape in ((7,), (7, 7), (4, 7, 1), (1, 1, 7, 7)):
        part = randn(*shape, seed=4)
        check({}, dict(weights=lambda attn, _, part=part: attn + part), attn_delta=part)


@pytest.mark.parametrize('flags', [dict(head_learned_sink=True), dict(num_mem_kv=2, head_learned_sink=True)])
def test_attn_delta_beside_further_keys(flags):
    """What counts the keys alone leaves the others as they are."""
    module, delta = layer(**flags), randn(2, 4, 7, 7, seed=3)
    _, before = module(randn(2, 7, 10), return_intermediates=True)
    _, after = module(randn(2, 7, 10), attn_delta=delta, return_intermediates=True)
    change = after.post_softmax_attn - before.post_softmax_attn
    assert_close(change[..., -7:], delta)
    assert (change[..., :-7] == 0).all()
    with pytest.raises(ValueError, match=r'`attn_delta` got shape \(2, 4, 7, 5\), its last axis must be 7'):
        module(randn(2, 7, 10), attn_delta=delta[..., :5])


# queries that compete


def compete(sim, normalise, seen):
    attn = normalise(sim.transpose(-1, -2)).transpose(-1, -2) * seen
    return attn / attn.abs().sum(-1, keepdim=True).clamp(min=1e-8)


@pytest.mark.parametrize('choice', [{}, dict(hard=True), dict(sigmoid=True), dict(cog_signed=True)])
def test_inverted_attention(choice):
    module = layer(inverted_attention=True, **choice)
    x, mask, seen = randn(2, 7, 10), bools(2, 7, seed=3), bools(2, 4, 7, 7, seed=4)
    mask[:, 0] = True

    def oracle(weights, x):
        q, k, v = (split_heads(linear(weights, f'to_{n}', x), 4) for n in 'qkv')
        sim = q @ k.transpose(-1, -2) / math.sqrt(6)
        signs = sim.sign() if 'cog_signed' in choice else 1.0
        sim = sim.abs() if 'cog_signed' in choice else sim
        normalise = one_hot if 'hard' in choice else torch.sigmoid if 'sigmoid' in choice else exp_over_sum
        real = mask[:, None, :, None]
        attn = compete(sim.masked_fill(~real, -math.inf), normalise, seen & mask[:, None, None])
        return linear(weights, 'to_out', merge_heads(attn * signs @ v)).masked_fill(~mask[..., None], 0)

    assert_same(module, lambda x: module(x, mask=mask, attn_mask=seen), oracle, x)


@pytest.mark.parametrize('flags', [{}, dict(head_learned_sink=True), dict(num_mem_kv=2, add_zero_kv=True)])
def test_inverted_attention_across(flags):
    module, mask = layer(inverted_attention=True, **flags), bools(2, 7, seed=3)
    x, context, real = randn(2, 7, 10), randn(2, 5, 10, seed=1), torch.arange(5) < torch.tensor([[3], [5]])
    out = module(x, context, mask=mask, context_mask=real)
    for row in range(2):
        alone = module(x[row : row + 1, mask[row]], context[row : row + 1, real[row]])
        assert_close(out[row : row + 1, mask[row]], alone)


def test_inverted_attention_of_left_padded_rows():
    """Padding does not compete, in self- nor in cross-attention."""
    net = randomised(Encoder(**STACK, cross_attend=True, attn_inverted_attention=True))
    x, context = randn(1, 5, 16), randn(1, 4, 16, seed=2)
    wide = torch.cat((randn(1, 2, 16, seed=5), x), dim=1)
    out = net(wide, context=context, seq_start_pos=torch.tensor([2]))
    assert_close(out[:, 2:], net(x, context=context))


def test_inverted_attention_in_half_precision():
    module = layer(inverted_attention=True).to(torch.float16)
    seen = bools(2, 1, 7, 7, keep=0.2)
    out = module(randn(2, 7, 10).half(), attn_mask=seen)
    assert out.isfinite().all()


def test_inverted_attention_refuses_an_order():
    with pytest.raises(ConfigError, match='`inverted_attention` cannot be combined with `causal`'):
        layer(inverted_attention=True, causal=True)
    module = layer(inverted_attention=True)
    with pytest.raises(ValueError, match='`causal=True` cannot be combined with `inverted_attention`'):
        module(randn(2, 7, 10), causal=True)
    for kind in (Decoder, PrefixDecoder):
        with pytest.raises(ConfigError, match=r'`attn_inverted_attention` cannot be combined with .*causal'):
            kind(**STACK, attn_inverted_attention=True)
    with pytest.raises(ConfigError, match='`attn_inverted_attention` cannot be combined with a causal stack'):
        Decoder(**STACK, cross_attend=True, only_cross=True, attn_inverted_attention=True)
    plainly, inverted = Encoder(**STACK), Encoder(**STACK, attn_inverted_attention=True)
    inverted.load_state_dict(plainly.state_dict())
    assert not torch.allclose(plainly(randn(2, 5, 16).float()), inverted(randn(2, 5, 16).float()))
    assert not inverted.can_cache_kv


@pytest.fixture
def warnings_of(monkeypatch):
    said = []
    monkeypatch.setattr('x_transformers.flags.checks.log_once', said.append)
    return said


def test_cross_inverted_attention_per_layer(warnings_of):
    net = Encoder(**STACK, cross_attend=True, cross_attn_inverted_attention=(False, True))
    chosen = [layer[1].features.find(type(f)) for layer in net.layers if layer.kind == 'c'
              for f in layer[1].features.active if 'inverted_attention' in f.flags]  # fmt: skip
    assert len(chosen) == 1 and not warnings_of
    net = Decoder(**STACK, cross_attend=True, cross_attn_inverted_attention=True)
    assert any('`cross_attn_inverted_attention` cannot be combined with a causal stack' in text for text in warnings_of)
    assert not net.can_cache_kv


# heads that talk, or collaborate


def test_talking_heads_of_the_first_versions():
    def acts(weights):
        def mixed(matrix):
            return lambda t, *_: torch.einsum('bhij,hk->bkij', t, weights[matrix])

        return dict(scores=mixed('pre_softmax_proj'), mix=mixed('post_softmax_proj'))

    module = check(dict(talking_heads=True, causal=True), lambda m: acts)
    assert module.pre_softmax_proj.shape == module.post_softmax_proj.shape == (4, 4)
    large = Attention(16, heads=64, dim_head=2, talking_heads=True)
    assert abs(large.pre_softmax_proj.std().item() - 1) < 0.1


def test_talking_heads_hand_on_what_is_not_mixed():
    net = randomised(Decoder(**STACK, residual_attn=True, attn_talking_heads=True))
    _, trace = net(randn(2, 5, 16), return_hiddens=True)
    first, second = trace.attn_intermediates
    module, x = net.layers[2][1], net.layers[2][0][0](trace.layer_hiddens[2])
    q, k = (split_heads(t, 4) for t in (module.to_q(x), module.to_k(x)))
    assert_close(second.qk_similarities, q @ k.transpose(-1, -2) / math.sqrt(8) + first.qk_similarities)


@pytest.mark.parametrize('flash', [False, None, True])
@pytest.mark.parametrize(('compression', 'width'), [(0.3, 7), (1.0, 24), (0.05, 1)])
def test_collab_heads(flash, compression, width):
    flags = dict(collab_heads=True, collab_compression=compression, causal=True, flash=flash)
    module = layer(**flags)
    assert module.to_q.weight.shape == module.to_k.weight.shape == (width, 10)
    assert module.collab_mixing.shape == (4, width)

    def oracle(weights, x):
        q, k = linear(weights, 'to_q', x), linear(weights, 'to_k', x)
        v = split_heads(linear(weights, 'to_v', x), 4)
        heads = []
        for h in range(4):
            sim = (q * weights['collab_mixing'][h]) @ k.transpose(-1, -2) / math.sqrt(6)
            sim = sim.masked_fill(~torch.ones(7, 7, dtype=torch.bool).tril(), -math.inf)
            heads.append(exp_over_sum(sim) @ v[:, h])
        return linear(weights, 'to_out', torch.cat(heads, dim=-1))

    assert_same(module, module, oracle, randn(2, 7, 10))
    whole, outs, cache = module(randn(2, 7, 10)), [], None
    for i in range(7):
        out, cache = module(randn(2, 7, 10)[:, i : i + 1], cache=cache, return_intermediates=True)
        outs.append(out)
    assert_close(torch.cat(outs, dim=1), whole)


def test_collab_heads_that_are_all_there():
    """With one-hot mixing, each head has its own part of the shared width: ordinary attention."""
    module, ordinary = layer(collab_heads=True, collab_compression=1.0), layer()
    with torch.no_grad():
        module.collab_mixing.copy_(torch.eye(4, dtype=torch.double).repeat_interleave(6, dim=1))
        for name in ('to_q', 'to_k', 'to_v', 'to_out'):
            getattr(module, name).weight.copy_(getattr(ordinary, name).weight)
    assert_close(module(randn(2, 7, 10)), ordinary(randn(2, 7, 10)))
    with pytest.raises(ConfigError, match=r'`collab_compression` got 0\.01, which leaves nothing of 24 features'):
        layer(collab_heads=True, collab_compression=0.01)


# which kernel


def test_backends():
    for given in (dict(enable_math=True), dict(enable_flash=True, enable_math=True, enable_mem_efficient=False)):
        module = layer(attend_sdp_kwargs=given, causal=True)
        assert module.sdp_backends is not None
        assert_close(module(randn(2, 7, 10)), layer(causal=True)(randn(2, 7, 10)))
    by_default = dict(enable_flash=True, enable_math=True, enable_mem_efficient=True)
    assert layer(attend_sdp_kwargs=by_default).sdp_backends is None
    for wrong in (dict(enable_fast=True), dict(enable_flash=False), {}, 'math'):
        with pytest.raises(ConfigError, match=r'`attend_sdp_kwargs` must be a dict of enable_flash, enable_m'):
            layer(attend_sdp_kwargs=wrong)


def test_backends_are_the_ones_asked_for(monkeypatch):
    seen, torch_sdpa = [], F.scaled_dot_product_attention

    def spy(*args, **kwargs):
        seen.append((torch.backends.cuda.flash_sdp_enabled(), torch.backends.cuda.math_sdp_enabled()))
        return torch_sdpa(*args, **kwargs)

    monkeypatch.setattr(F, 'scaled_dot_product_attention', spy)
    layer()(randn(1, 3, 10))
    layer(attend_sdp_kwargs=dict(enable_math=True))(randn(1, 3, 10))
    layer(attend_sdp_kwargs=dict(enable_math=True, enable_flash=False))(randn(1, 3, 10))
    assert seen == [(True, True), (False, True), (False, True)]


def test_idle_options_are_named(warnings_of):
    warn_once.cache_clear()
    layer(flash=False, attend_sdp_kwargs=dict(enable_math=True))
    layer(head_learned_sink=True, sigmoid=True)
    assert any('`attend_sdp_kwargs` has no effect with `flash=False`' in text for text in warnings_of)
    assert any('`head_learned_sink` has no effect beside `sigmoid`' in text for text in warnings_of)


def test_onnxable_changes_nothing():
    assert torch.equal(layer(onnxable=True, causal=True)(randn(2, 7, 10)), layer(causal=True)(randn(2, 7, 10)))


EAGER = ('hard', 'gumbel_softmax', 'use_entmax15', 'selective', 'use_cope', 'cog_signed', 'head_learned_sink',
         'talking_heads')  # fmt: skip


@pytest.mark.parametrize('flag', EAGER)
def test_the_fused_kernel_refuses_what_it_does_not_form(flag):
    with pytest.raises(ConfigError, match=f'`flash=True` cannot be combined with `{flag}`'):
        layer(**{flag: True}, causal=True, flash=True)


def test_the_fused_kernel_refuses_inverted_attention():
    with pytest.raises(ConfigError, match='`flash=True` cannot be combined with `inverted_attention`'):
        layer(inverted_attention=True, flash=True)


@pytest.mark.parametrize('flash', [False, True])
def test_causal_rows_before_all_keys(flash):
    """A context shorter than x: aligned at the end, and rows before its first key give zeros."""
    module = layer(causal=True, flash=flash)
    x, context = randn(2, 7, 10), randn(2, 4, 10, seed=1)
    out, inter = module(x, context, return_intermediates=True)
    assert (out[:, :3] == 0).all() and (inter.post_softmax_attn[:, :, :3] == 0).all()
    assert_close(out[:, 3:], module(x[:, 3:], context))


# packed documents

SIZES = (3, 1, 5)


def boundaries(*sizes, keys=None):
    q = torch.tensor([0, *sizes]).cumsum(0).int()
    k = q if keys is None else torch.tensor([0, *keys]).cumsum(0).int()
    return dict(cu_seqlens_q=q, cu_seqlens_k=k, max_seqlen_q=max(sizes), max_seqlen_k=max(keys or sizes))


@pytest.mark.parametrize('flash', [None, True])
@pytest.mark.parametrize(
    'flags', [{}, dict(causal=True), dict(causal=True, num_mem_kv=2), dict(causal=True, max_attend_past=1)]
)
def test_packed_documents_are_as_if_alone(flags, flash):
    module, x = layer(flash_pack_seq=True, flash=flash, **flags), randn(1, 9, 10)
    out = module(x, flash_pack_seq_kwargs=boundaries(*SIZES))
    assert_close(out, torch.cat([module(part) for part in x.split(SIZES, dim=1)], dim=1))


@pytest.mark.parametrize(
    'flags',
    [
        dict(selective=True),
        dict(use_cope=True, cope_max_pos=3),
        dict(use_cope=True, cope_talking_heads=True),
        dict(laser=True),
        dict(head_learned_sink=True, cog_signed=True),
        dict(use_entmax15=True),
        dict(sparse_topk=2),
    ],
)
def test_packed_documents_with_what_acts_on_scores(flags):
    module, x = layer(flash_pack_seq=True, causal=True, **flags), randn(1, 9, 10)
    out = module(x, flash_pack_seq_kwargs=boundaries(*SIZES))
    assert_close(out, torch.cat([module(part) for part in x.split(SIZES, dim=1)], dim=1))


@pytest.mark.parametrize('rotary', [dict(rotary_pos_emb=True), dict(rotary_xpos=True)])
@pytest.mark.parametrize('more', [{}, dict(alibi_pos_bias=True)])
def test_packed_documents_of_a_stack(rotary, more):
    net = randomised(Decoder(**STACK, cross_attend=True, attn_flash_pack_seq=True, **rotary, **more))
    x, context, sizes = randn(1, 9, 16), randn(1, 8, 16, seed=1), (2, 4, 2)
    out = net(
        x,
        context=context,
        flash_pack_seq_kwargs=boundaries(*SIZES),
        flash_pack_seq_context_kwargs=boundaries(*SIZES, keys=sizes),
    )
    parts = zip(x.split(SIZES, dim=1), context.split(sizes, dim=1), strict=True)
    assert_close(out, torch.cat([net(part, context=own) for part, own in parts], dim=1))


def test_packed_documents_of_a_model():
    net = TransformerWrapper(
        num_tokens=20,
        max_seq_len=32,
        attn_layers=Decoder(**STACK, attn_flash_pack_seq=True, rotary_pos_emb=True),
    )
    net, ids = randomised(net), torch.arange(9).unsqueeze(0)
    out = net(ids, flash_pack_seq_kwargs=boundaries(*SIZES))
    assert_close(out, torch.cat([net(part) for part in ids.split(SIZES, dim=1)], dim=1))
    leading = TransformerWrapper(
        num_tokens=20,
        max_seq_len=32,
        num_memory_tokens=2,
        attn_layers=Decoder(**STACK, attn_flash_pack_seq=True, rotary_pos_emb=True),
    )
    with pytest.raises(ValueError, match='must rise from 0 to 11, with all that stands in front'):
        leading(ids, flash_pack_seq_kwargs=boundaries(*SIZES))


def test_a_user_may_place_packed_documents():
    net = randomised(Decoder(**STACK, attn_flash_pack_seq=True, rotary_pos_emb=True))
    x, pos = randn(1, 9, 16), torch.cat([torch.arange(n) * 2 for n in SIZES])
    out = net(x, flash_pack_seq_kwargs=boundaries(*SIZES), pos=pos)
    parts = zip(x.split(SIZES, dim=1), pos.split(SIZES), strict=True)
    assert_close(out, torch.cat([net(part, pos=own) for part, own in parts], dim=1))


def refused(match, call, error=ValueError):
    with pytest.raises(error, match=match):
        call()


def test_packing_that_is_refused():
    good, x = boundaries(*SIZES), randn(1, 9, 10)
    module = layer(flash_pack_seq=True)

    def packed(**changes):
        return lambda: module(x, flash_pack_seq_kwargs={**good, **changes})

    refused('`flash_pack_seq` cannot be combined with `flash=False`', lambda: layer(flash_pack_seq=True, flash=False))
    refused('unexpected input `flash_pack_seq_kwargs`', lambda: layer()(x, flash_pack_seq_kwargs=good), TypeError)
    refused('the batch has 2', lambda: module(randn(2, 9, 10), flash_pack_seq_kwargs=good))
    refused('must be a dict of cu_seqlens_q', packed(dropout_p=0.1), TypeError)
    refused('needs `cu_seqlens_q` and `cu_seqlens_k`', packed(cu_seqlens_k=None))
    refused('3 documents of queries and 1 of keys', packed(cu_seqlens_k=torch.tensor([0, 9])))
    refused('rise from 0 to 9', packed(cu_seqlens_q=torch.tensor([0, 3, 4, 8])))
    refused('rise from 0 to 9', packed(cu_seqlens_q=torch.tensor([0, 5, 4, 9])))
    refused('combined with `inverted_attention`', lambda: layer(flash_pack_seq=True, inverted_attention=True))
    _, inter = layer(flash_pack_seq=True, causal=True)(x, return_intermediates=True)
    refused(
        'cannot be combined with a cache',
        lambda: layer(flash_pack_seq=True, causal=True)(x, cache=inter, flash_pack_seq_kwargs=good),
    )


def test_packing_that_a_stack_refuses():
    rotary = dict(rotary_pos_emb=True)
    refused('`attn_flash_pack_seq` needs `rotary_pos_emb`', lambda: Decoder(**STACK, attn_flash_pack_seq=True))
    refused('with `shift_tokens`', lambda: Decoder(**STACK, **rotary, attn_flash_pack_seq=True, shift_tokens=1))
    refused(
        r'`attn_flash_pack_seq` got \(True, False\), all layers must pack',
        lambda: Decoder(**STACK, **rotary, attn_flash_pack_seq=(True, False)),
    )
    refused('flash=False', lambda: Decoder(**STACK, **rotary, attn_flash_pack_seq=True, attn_flash=False))
    good, x = boundaries(*SIZES), randn(1, 9, 16).float()
    refused(
        '`flash_pack_seq_kwargs` needs a stack with `attn_flash_pack_seq=True`',
        lambda: Decoder(**STACK)(x, flash_pack_seq_kwargs=good),
    )
    net = Decoder(**STACK, **rotary, attn_flash_pack_seq=True)
    mask = torch.ones(1, 9, dtype=torch.bool)
    refused('combined with `mask`', lambda: net(x, mask=mask, flash_pack_seq_kwargs=good))
    refused('combined with `attn_mask`', lambda: net(x, attn_mask=mask.expand(9, 9), flash_pack_seq_kwargs=good))
    refused('combined with `context_mask`', lambda: net(x, seq_start_pos=torch.tensor([1]), flash_pack_seq_kwargs=good))
    refused(
        '`flash_pack_seq_context_kwargs` needs a stack with `attn_flash_pack_seq=True` and `cross_attend=True`',
        lambda: net(x, flash_pack_seq_context_kwargs=good),
    )
    across = CrossAttender(**STACK, attn_flash_pack_seq=True)
    refused(
        '`flash_pack_seq_context_kwargs` cannot be combined with `context_mask`',
        lambda: across(x, context=x, context_mask=mask, flash_pack_seq_context_kwargs=good),
    )


# probabilities of what was chosen


@pytest.mark.parametrize('flags', [dict(attn_hard=True), dict(attn_gumbel_softmax=True), {}])
@pytest.mark.parametrize('training', [False, True])
def test_log_probs_of_the_chosen_keys(flags, training):
    net = randomised(Decoder(**STACK, cross_attend=True, **flags)).train(training)
    x, context = randn(2, 6, 16), randn(2, 4, 16, seed=1)
    out, trace = net(x, context=context, return_gumbel_log_probs=True)
    assert out.shape == x.shape and len(trace.attn_intermediates) == 4
    for inter in trace.attn_intermediates:
        logits, attn = inter.pre_softmax_attn, inter.post_softmax_attn
        wanted = torch.zeros(2, 4, 6, dtype=torch.double)
        for b in range(2):
            for h in range(4):
                for i in range(6):
                    best = int(attn[b, h, i].argmax())
                    wanted[b, h, i] = torch.log_softmax(logits[b, h, i], dim=-1)[best]
        assert_close(inter.log_probs, wanted)
    total = sum(inter.log_probs.sum() for inter in trace.attn_intermediates)
    (grad,) = torch.autograd.grad(total, [net.layers[0][1].to_q.weight])
    assert grad.abs().max() > 0
    assert net(x, context=context, return_hiddens=True)[1].attn_intermediates[0].log_probs is None


@pytest.mark.parametrize('dtype', [torch.float16, torch.bfloat16])
def test_weights_of_half_precision_logits_are_those_of_single_precision(dtype):
    """Each is the weight itself, rounded once: a sum over many keys has the digits."""
    sim = randn(2, 3, 4, 500).to(dtype)
    assert torch.equal(softmax(sim), sim.float().softmax(dim=-1))
    module = layer(flash=False).to(dtype)
    x = randn(1, 300, 10).to(dtype)
    _, trace = module(x, return_intermediates=True)
    assert torch.equal(trace.post_softmax_attn, trace.pre_softmax_attn.float().softmax(dim=-1).to(dtype))
