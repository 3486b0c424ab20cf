"""The toy tasks ask what they say: every answer again, read off the sequence by plain loops."""

import itertools

import pytest
import torch
import toy_tasks
from toy_tasks import IGNORED, Chain, learned, net_for

from x_transformers import Decoder


def at_shift(x, i):
    return x[i - 3] if i >= 3 else None


def at_latest(x, i):
    return [t - 8 for t in x[:i] if 8 <= t < 16][-1] if x[i] == 16 else None


def at_recall(x, i):
    pairs = dict(divmod(t - 9, 8) for t in x[:16] if t >= 9)
    assert len(pairs) == 8
    return pairs[x[i] - 1] if i >= 16 else None


def at_recall_in_two(x, i):
    pairs = dict((a, b - 5) for a, b in itertools.pairwise(x[:16]) if 1 <= a < 5 <= b)
    assert len(pairs) == 4
    return pairs[x[i]] if i >= 16 else None


def at_overwrite(x, i):
    given = [t // 8 - 1 for t in x[:i] if t >= 8 and t % 8 == x[i]]
    return given[-1] if x[i] < 8 and given else None


def at_cross(x, i):
    """One secret, and the question at the end of the segment two later."""
    (at,) = (j for j, t in enumerate(x) if t < 8)
    return x[at] if i == (at // 16 + 3) * 16 - 1 else None


def at_copy(x, i):
    assert x[16] == 8
    return x[i - 16] if i >= 16 else None


def at_far(x, i):
    (at,) = (j for j, t in enumerate(x) if t < 8)
    assert at < 32
    return x[at] if x[i] == 8 else None


def at_stripes(x, i):
    return x[1 + i - 24] if i >= 24 else None


def at_markov(x, i):
    return x[i + 1] if 0 < i < len(x) - 1 else None


def of_class(x):
    kinds = [t - 1 for t in x if t in (1, 2)]
    assert len(kinds) == 9
    return kinds


def at_majority(x, i):
    assert all(t > 2 for t in x[1:20])
    return of_class(x).count(1) > of_class(x).count(0) if i == 0 else None


def at_parity(x, i):
    return sum(of_class(x)) % 2 if i == len(x) - 1 else None


def at_hard(x, i):
    table, place = dict(divmod(t - 12, 8) for t in x[1:9]), x[9] - 4
    for _ in range(x[0] + 1):
        place = table[place]
    return place if i == 9 else None


TASKS = {
    at_shift: toy_tasks.shift(3),
    at_latest: toy_tasks.latest(),
    at_recall: toy_tasks.recall(),
    at_recall_in_two: toy_tasks.recall(keys=4, packed=False),
    at_overwrite: toy_tasks.overwrite(),
    at_cross: toy_tasks.cross(2),
    at_copy: toy_tasks.copy(),
    at_far: toy_tasks.far(64),
    at_stripes: toy_tasks.stripes(3),
    at_markov: toy_tasks.markov(16),
    at_majority: toy_tasks.marked_class(64, apart=20),
    at_parity: toy_tasks.marked_class(64, kind='parity', at='last'),
    at_hard: toy_tasks.hard(),
}


def test_tasks_ask_what_they_say():
    for answer, task in TASKS.items():
        x, y = task.draw(60)
        assert x.shape == y.shape == (60, task.n)
        assert 0 <= x.min() and x.max() < task.tokens
        asked, checked = y != IGNORED, 0
        assert asked.any(dim=1).all() and set(y[asked].tolist()) == set(range(task.answers)), answer.__name__
        for row, wanted in zip(x.tolist(), y.tolist(), strict=True):
            for i in range(task.n):
                found = answer(row, i)
                if answer is at_markov and found is None:  # the last one lies behind the sequence
                    continue
                assert wanted[i] == (IGNORED if found is None else found), (answer.__name__, i, row)
                checked += found is not None
        assert checked >= asked.sum() - 60, answer.__name__


def test_chains_of_another_kind():
    """Two chains differ, and the pairs that are drawn follow the chances."""
    table = toy_tasks.chances(0)
    assert (table - toy_tasks.chances(1)).abs().mean() > 0.1
    x, _ = toy_tasks.markov(64).draw(400)
    after = x[:, 2:][(x[:, :-2] == 3) & (x[:, 1:-1] == 5)]
    seen = after.bincount(minlength=8) / len(after)
    assert len(after) > 100 and (seen - table[3, 5]).abs().max() < 0.15


def test_walks():
    """At random they end anywhere, to the right always at the last state; a reward comes at the end alone."""
    chain = Chain()
    states, actions, rewards = chain.walk(200)
    assert (states[:, 1:] == chain.step(states[:, :-1], actions[:, :-1])).all()
    assert not rewards[:, :-1].any() and 0.3 < rewards[:, -1].mean() < 0.7
    best = chain.walk(3, lambda step, state: torch.ones_like(state))
    assert best[2][:, -1].tolist() == [1.0] * 3


@pytest.mark.slow
def test_a_task_is_learned():
    task, steps = toy_tasks.shift(1, n=16), []
    net = net_for(task, Decoder, depth=1, rotary_pos_emb=True)
    assert toy_tasks.right(net, task) < 3 * task.chance
    assert learned(net, task, steps=150, after=steps.append) > 0.95
    assert len(steps) == 149 and steps[-1] < 1
