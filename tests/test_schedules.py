"""Learning rates: their values, resuming, groups, and a deep post-norm model that learns only with a warm-up."""

import math

import pytest
import torch
from torch import nn
from toy_tasks import IGNORED, SEEDS, copy, net_for, right

from x_transformers import Decoder, Encoder, schedules


def optimiser(*rates):
    return torch.optim.SGD([dict(params=[nn.Parameter(torch.zeros(1))], lr=lr) for lr in rates])


def rates(scheduler, steps):
    """The rate of each group at each step."""
    found = []
    for _ in range(steps):
        found.append(scheduler.get_last_lr())
        scheduler.optimizer.step()
        scheduler.step()
    return found


def test_noam():
    found = [rate for (rate,) in rates(schedules.noam(optimiser(1.0), dim=64, warmup=4), 9)]
    wanted = [1 / 8 * min(1 / math.sqrt(t), t / 8) for t in range(1, 10)]
    assert found == pytest.approx(wanted, rel=1e-12)
    assert found[:5] == pytest.approx([1 / 64, 1 / 32, 3 / 64, 1 / 16, 0.0559016994], rel=1e-9)
    assert max(found) == found[3] == pytest.approx((64 * 4) ** -0.5)


@pytest.mark.parametrize('decay, wanted', [
    ('linear', [0.25, 0.5, 0.75, 1.0, 0.85, 0.7, 0.55, 0.4, 0.25, 0.1, 0.1, 0.1]),
    ('cosine', [0.25, 0.5, 0.75, 1.0, 0.1 + 0.9 * math.cos(math.pi / 12) ** 2, 0.775, 0.55, 0.325,
                0.1 + 0.9 * math.cos(5 * math.pi / 12) ** 2, 0.1, 0.1, 0.1]),
    ('rsqrt', [0.25, 0.5, 0.75, 1.0, *[(4 / t) ** 0.5 for t in range(5, 11)], 0.4**0.5, 0.4**0.5]),
    ('none', [0.25, 0.5, 0.75, *[1.0] * 9]),
])  # fmt: skip
def test_values(decay, wanted):
    """Four steps up, six down to a tenth, and there it stays."""
    made = schedules.warmup(optimiser(2.0, 0.5), 10, 4, decay, min_ratio=0.1)
    found = rates(made, 12)
    assert [a for a, _ in found] == pytest.approx([2 * w for w in wanted], rel=1e-12)
    assert [b for _, b in found] == pytest.approx([0.5 * w for w in wanted], rel=1e-12)


def test_edges():
    assert rates(schedules.warmup(optimiser(1.0), 5, 0), 5) == [[1.0], [0.75], [0.5], [0.25], [0.0]]
    assert rates(schedules.warmup(optimiser(1.0), 3, 3), 3) == [[pytest.approx(1 / 3)], [pytest.approx(2 / 3)], [1.0]]
    assert rates(schedules.warmup(optimiser(1.0), 1, 0), 2) == [[1.0], [1.0]]
    assert rates(schedules.warmup(optimiser(1.0), 9, 4, 'rsqrt', min_ratio=0.9), 9)[-1] == [0.9]
    # 2 % of the steps
    found = rates(schedules.warmup(optimiser(1.0), 200), 6)
    assert found[:4] == [[0.25], [0.5], [0.75], [1.0]] and 0.99 < found[4][0] < 1


def test_resuming():
    made = schedules.warmup(optimiser(1.0), 10, 4, 'cosine')
    whole = rates(made, 10)
    first = schedules.warmup(optimiser(1.0), 10, 4, 'cosine')
    assert rates(first, 5) == whole[:5]
    again = schedules.warmup(optimiser(1.0), 10, 4, 'cosine')
    again.load_state_dict(first.state_dict())
    again.optimizer.load_state_dict(first.optimizer.state_dict())
    assert rates(again, 5) == whole[5:]


@pytest.mark.parametrize('build, error, words', [
    (lambda: schedules.warmup(optimiser(1.0), 10, 11), ValueError, '`warmup` got 11 steps, more than'),
    (lambda: schedules.warmup(optimiser(1.0), 10, 1.5), ValueError, r'`warmup` must .*got 1.5'),
    (lambda: schedules.warmup(optimiser(1.0), 10, -1), ValueError, r'`warmup` must .*got -1'),
    (lambda: schedules.warmup(optimiser(1.0), 0), ValueError, r'`total_steps` must .*got 0'),
    (lambda: schedules.warmup(optimiser(1.0), 10, decay='exp'), ValueError, r"`decay` must .*got 'exp'"),
    (lambda: schedules.warmup(optimiser(1.0), 10, min_ratio=2), ValueError, r'`min_ratio` must .*got 2'),
    (lambda: schedules.warmup(nn.Linear(2, 2), 10), TypeError, r'`optimizer` must .*got Linear'),
    (lambda: schedules.noam(optimiser(1.0), 0), ValueError, r'`dim` must .*got 0'),
    (lambda: schedules.noam(optimiser(1.0), 8, 0), ValueError, r'`warmup` must .*got 0'),
])  # fmt: skip
def test_refusals(build, error, words):
    with pytest.raises(error, match=words):
        build()


@pytest.mark.slow
@SEEDS
def test_a_deep_post_norm_model_learns_with_a_warm_up_only(seed):
    """Twelve layers copy a word, at a rate that is too high for their first steps."""
    task, found = copy(n=12, tokens=4), {}
    for share in (0, 0.02):
        torch.manual_seed(seed)
        sizes = dict(depth=12, dim=32, heads=2, attn_dim_head=16, ff_mult=2)
        net = net_for(task, Decoder, **sizes, pre_norm=False)
        optimizer = torch.optim.Adam(net.parameters(), lr=1e-2)
        scheduler = schedules.warmup(optimizer, 300, share)
        for _ in range(300):
            x, y = task.draw(32)
            optimizer.zero_grad()
            nn.functional.cross_entropy(net(x).transpose(1, 2), y, ignore_index=IGNORED).backward()
            optimizer.step()
            scheduler.step()
        found[share] = right(net, task)
    # seen: 0.2 to 0.3 without, 0.8 to 1 with, by the number of threads
    assert found[0] < 0.5 and found[0.02] > 0.7, found


def xavier_(stack):
    for weight in stack.parameters():
        if weight.ndim == 2:
            nn.init.xavier_uniform_(weight)


def last_gradient(pre_norm, depth, dim=64):
    """The gradient of the last feedforward's way out, at Xavier's weights, inputs and targets of chance."""
    torch.manual_seed(0)
    flags = dict(heads=4, attn_dim_head=dim // 4, verbose=False, pre_norm=pre_norm)
    stack = Encoder(dim=dim, depth=depth, **flags)
    xavier_(stack)
    way_out = stack.layers[-1][1].output_layer.weight
    out = stack(torch.randn(8, 32, dim))
    return torch.autograd.grad((out - torch.randn_like(out)).square().mean(), way_out)[0].norm()


@pytest.mark.costly
@pytest.mark.parametrize(('pre_norm', 'least', 'most'), [(True, 3.0, 6.0), (False, 0.0, 1.5)])
def test_gradients_of_deep_stacks_at_first(pre_norm, least, most):
    """With norms before branches they fall with the root of the depth, behind them not. Xiong et al., 2002.04745."""
    ratio = last_gradient(pre_norm, 2) / last_gradient(pre_norm, 32)
    assert least < ratio < most


@pytest.mark.nightly
def test_without_a_warm_up_norms_stand_before_branches():
    """Twelve layers copy a word at a rate of 1e-3 from the first step on, or do not; two of three seeds."""
    found = {}
    for pre_norm in (True, False):
        for seed in range(3):
            torch.manual_seed(seed)
            task = copy(n=12, tokens=4)
            net = net_for(task, Decoder, depth=12, dim=128, heads=4, attn_dim_head=32, pre_norm=pre_norm)
            xavier_(net.attn_layers)
            optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
            for _ in range(200):
                x, y = task.draw(32)
                optimizer.zero_grad()
                nn.functional.cross_entropy(net(x).transpose(1, 2), y, ignore_index=IGNORED).backward()
                optimizer.step()
            found[pre_norm, seed] = right(net, task)
    assert sum(found[True, seed] > 0.9 for seed in range(3)) >= 2, found
    assert sum(found[False, seed] < 0.6 for seed in range(3)) >= 2, found
