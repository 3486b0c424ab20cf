"""Tasks that small nets learn in seconds, as sequences of tokens with questions, and what trains on them.

    task = latest(n=32)
    net = net_for(task, Decoder, attn_kernel='elu')
    assert learned(net, task, steps=300) > 0.95             # the part of questions answered right, on new data

A task is drawn anew for each step, so nothing can be known by heart. Tasks give answers for the same place as the
question stands; a task "causal" can be answered without what comes later, and every one by an encoder.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import pytest
import torch
from torch import Tensor, nn

from x_transformers import TransformerWrapper

IGNORED = -100
# one seed in every run of the slow tests, two by night
SEEDS = pytest.mark.parametrize('seed', [0, *(pytest.param(s, marks=pytest.mark.nightly) for s in (1, 2))])


@dataclass(frozen=True)
class Task:
    """Sequences (b n) below `tokens`, with answers (b n) below `answers`, IGNORED where nothing is asked."""

    draw: Callable[[int], tuple[Tensor, Tensor]]
    n: int
    tokens: int
    answers: int

    @property
    def chance(self) -> float:
        """What guessing gets right."""
        return 1 / self.answers


# training


def taught(model: nn.Module, loss: Callable[[], Tensor], steps: int, lr: float = 3e-3) -> nn.Module:
    """The model after so many steps of `loss()`, with a rate that falls to nothing."""
    optimiser = torch.optim.Adam(model.parameters(), lr=lr)
    fall = torch.optim.lr_scheduler.LambdaLR(optimiser, lambda step: min(1.0, (step + 1) / 20) * (1 - step / steps))
    for _ in range(steps):
        optimiser.zero_grad()
        loss().backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        fall.step()
    return model.eval()


def net_for(task: Task, stack: type[nn.Module], around: dict | None = None, **flags: object) -> TransformerWrapper:
    """A net of two layers and four heads that reads a task; `around` are flags of the wrapper."""
    sizes = {'dim': 48, 'depth': 2, 'heads': 4, 'attn_dim_head': 12, **flags}
    wrapper = {'num_tokens': task.tokens, 'logits_dim': task.answers, 'max_seq_len': task.n, **(around or {})}
    return TransformerWrapper(attn_layers=stack(**sizes), **wrapper)


def right(net: nn.Module, task: Task, b: int = 200, **inputs: object) -> float:
    """The part of the questions that the net answers, on new data."""
    x, y = task.draw(b)
    with torch.no_grad():
        found = net.eval()(x, **inputs).argmax(dim=-1)
    return (found == y)[y != IGNORED].float().mean().item()


def learned(
    net: nn.Module, task: Task, steps: int = 300, b: int = 64, lr: float = 3e-3, after: object = None, **inputs: object
) -> float:
    """What a net gets right after training; `after(progress)` runs behind each step."""
    done = 0

    def loss() -> Tensor:
        nonlocal done
        if after is not None and done:
            after(done / steps)
        done += 1
        x, y = task.draw(b)
        return nn.functional.cross_entropy(net(x, **inputs).transpose(1, 2), y, ignore_index=IGNORED)

    return right(taught(net.train(), loss, steps, lr), task, **inputs)


# drawing


def ids(high: int, *shape: int) -> Tensor:
    return torch.randint(0, high, shape)


def nothing_asked(b: int, n: int) -> Tensor:
    return torch.full((b, n), IGNORED)


def places(b: int, n: int, count: int) -> Tensor:
    """`count` different places of n, (b count), in order."""
    return torch.rand(b, n).argsort(dim=-1)[:, :count].sort(dim=-1).values


# tasks that are causal


def shift(k: int, n: int = 32, tokens: int = 16) -> Task:
    """T-shift: the token k places before."""

    def draw(b: int) -> tuple[Tensor, Tensor]:
        x = ids(tokens, b, n)
        return x, torch.cat((nothing_asked(b, k), x[:, : n - k]), dim=1)

    return Task(draw, n, tokens, tokens)


def latest(n: int = 32, values: int = 8, marked: float = 0.1, asked: float = 0.15) -> Task:
    """T-latest: noise tokens, rare marked values, of which the first token is one, and at '?' the latest of them.

    Tokens: `values` of noise, `values` marked ones, '?'.
    """

    def draw(b: int) -> tuple[Tensor, Tensor]:
        value, kind = ids(values, b, n), torch.rand(b, n)
        is_value, is_question = kind < marked, kind > 1 - asked
        is_value[:, 0], is_question[:, 0], is_question[:, -1], is_value[:, -1] = True, False, True, False
        x = torch.where(is_question, 2 * values, value + values * is_value)
        last = torch.where(is_value, torch.arange(n), -1).cummax(dim=1).values
        return x, torch.where(is_question, value.gather(1, last), IGNORED)

    return Task(draw, n, 2 * values + 1, values)


def recall(n: int = 32, keys: int = 8, values: int = 8, packed: bool = True) -> Task:
    """T-recall: the first half of the places holds each key once with its value, the second asks for keys.

    Tokens: filler, `keys` questions, and then `keys` * `values` pairs; or, not packed, `values`, each behind a key.
    """
    half, width = n // 2, 1 if packed else 2

    def draw(b: int) -> tuple[Tensor, Tensor]:
        order, value, asked = torch.rand(b, keys).argsort(dim=-1), ids(values, b, keys), ids(keys, b, n - half)
        x = torch.zeros(b, n, dtype=torch.long)
        at = places(b, half // width, keys) * width
        own = value.gather(1, order)
        if packed:
            x.scatter_(1, at, 1 + keys + order * values + own)
        else:
            x.scatter_(1, at, 1 + order).scatter_(1, at + 1, 1 + keys + own)
        x[:, half:] = 1 + asked
        return x, torch.cat((nothing_asked(b, half), value.gather(1, asked)), dim=1)

    return Task(draw, n, 1 + keys + values * (keys if packed else 1), values)


def overwrite(n: int = 64, keys: int = 8, values: int = 8, asked: float = 0.3) -> Task:
    """T-overwrite: each token gives a key a value, or asks for the latest one of a key that has one.

    Tokens: `keys` questions, then `keys` * `values` pairs.
    """

    def draw(b: int) -> tuple[Tensor, Tensor]:
        key, value, is_question = ids(keys, b, n), ids(values, b, n), torch.rand(b, n) < asked
        same = (key[:, :, None] == key[:, None]) & ~is_question[:, None]
        before = torch.where(same.tril(), torch.arange(n), -1).amax(dim=-1)
        answer = value.gather(1, before.clamp(min=0)).masked_fill(before < 0, IGNORED)
        return torch.where(is_question, key, keys * (1 + value) + key), answer.masked_fill(~is_question, IGNORED)

    return Task(draw, n, keys * (1 + values), values)


def cross(distance: int, segments: int = 4, length: int = 16, values: int = 8) -> Task:
    """T-cross: a secret in one segment, and as the last token of the segment `distance` later the question for it.

    Tokens: `values` secrets, '?', `values` of filler.
    """

    def draw(b: int) -> tuple[Tensor, Tensor]:
        n, secret, segment = segments * length, ids(values, b, 1), ids(segments - distance, b, 1)
        x = values + 1 + ids(values, b, n)
        x.scatter_(1, segment * length + ids(length - 1, b, 1), secret)
        asked = (segment + distance + 1) * length - 1
        x.scatter_(1, asked, values)
        return x, nothing_asked(b, n).scatter_(1, asked, secret)

    return Task(draw, segments * length, 2 * values + 1, values)


def copy(n: int = 32, tokens: int = 8) -> Task:
    """T-copy2: a word of n / 2 tokens, #, and the word again: each token of it foretold by the one before."""
    half = n // 2

    def draw(b: int) -> tuple[Tensor, Tensor]:
        word = ids(tokens, b, half)
        x = torch.cat((word, torch.full((b, 1), tokens), word[:, :-1]), dim=1)
        return x, torch.cat((nothing_asked(b, half), word), dim=1)

    return Task(draw, 2 * half, tokens + 1, tokens)


def far(n: int = 512, values: int = 8, questions: int = 8) -> Task:
    """T-far: one needle somewhere in the first half, which the last tokens ask for.

    Tokens: `values` needles, '?', `values` of filler.
    """

    def draw(b: int) -> tuple[Tensor, Tensor]:
        needle = ids(values, b, 1)
        x = (values + 1 + ids(values, b, n)).scatter_(1, ids(n // 2, b, 1), needle)
        x[:, n - questions :] = values
        return x, torch.cat((nothing_asked(b, n - questions), needle.expand(b, questions)), dim=1)

    return Task(draw, n, 2 * values + 1, values)


def stripes(period: int = 2, side: int = 8, colours: int = 4) -> Task:
    """T-stripes: images in raster order whose rows repeat every `period`; each pixel foretold by those before.

    Nothing is asked of the first rows, which cannot be known. Tokens: `colours`, and one that the image begins with.
    """

    def draw(b: int) -> tuple[Tensor, Tensor]:
        pixels = ids(colours, b, period, side).repeat(1, -(-side // period), 1)[:, :side].flatten(1)
        x = torch.cat((torch.full((b, 1), colours), pixels[:, :-1]), dim=1)
        return x, torch.cat((nothing_asked(b, period * side), pixels[:, period * side :]), dim=1)

    return Task(draw, side * side, colours + 1, colours)


def markov(n: int = 64, which: int = 0, tokens: int = 8) -> Task:
    """T-markov: the next token of a chain of order 2; `which` of all such chains."""
    table = chances(which, tokens)

    def draw(b: int) -> tuple[Tensor, Tensor]:
        x = [*ids(tokens, 2, b)]
        for _ in range(n - 1):
            x.append(table[x[-2], x[-1]].multinomial(1).squeeze(1))
        x = torch.stack(x, dim=1)
        return x[:, :-1], torch.cat((nothing_asked(b, 1), x[:, 2:]), dim=1)

    return Task(draw, n, tokens, tokens)


@cache
def chances(which: int, tokens: int = 8) -> Tensor:
    """Of the next token, given the two before (t t t): mostly one or two are likely."""
    generator = torch.Generator().manual_seed(which)
    return torch.randn(tokens, tokens, tokens, generator=generator).mul(2.5).softmax(dim=-1)


# tasks with one answer, asked at the first token (of an encoder) or at the last


def marked_class(
    n: int = 512, marked: int = 9, kind: str = 'majority', at: str = 'first', apart: int = 1, noise: int = 8
) -> Task:
    """T-class: of which of two kinds most of the marked tokens are, or whether those of the second are odd in number.

    `apart` tokens next to the question are noise. Tokens: '?', the two marked ones, `noise` of noise.
    """

    def draw(b: int) -> tuple[Tensor, Tensor]:
        value = ids(2, b, marked)
        x = (3 + ids(noise, b, n)).scatter_(1, apart + places(b, n - apart, marked), 1 + value)
        x[:, 0] = 0
        total = value.sum(dim=-1)
        y = nothing_asked(b, n)
        y[:, 0] = total % 2 if kind == 'parity' else total * 2 > marked
        return (x, y) if at == 'first' else (x.flip(1), y.flip(1))

    return Task(draw, n, 3 + noise, 2)


def hard(most: int = 4, values: int = 8) -> Task:
    """T-hard: a table, and what is found by looking up from a start, again and again, as often as the first token says.

    Tokens: `most` numbers of look-ups, `values` starts, `values`**2 entries of the table, in any order.
    """

    def draw(b: int) -> tuple[Tensor, Tensor]:
        often, start, table = ids(most, b, 1), ids(values, b, 1), torch.rand(b, values).argsort(dim=-1)
        order = torch.rand(b, values).argsort(dim=-1)
        entries = most + values * (1 + order) + table.gather(1, order)
        x = torch.cat((often, entries, most + start), dim=1)
        found = start
        for step in range(most):
            found = torch.where(step <= often, table.gather(1, found), found)
        return x, torch.cat((nothing_asked(b, values + 1), found), dim=1)

    return Task(draw, values + 2, most + values * (1 + values), values)


# an environment


@dataclass(frozen=True)
class Chain:
    """T-chain: a row of states, from the middle of which a walker goes left (0) or right (1); the end is rewarded.

    A reward comes after the last step: the last state over that of most, so the best walker always goes right.
    """

    states: int = 8
    steps: int = 10

    def start(self, b: int) -> Tensor:
        return torch.full((b,), self.states // 2 - 1)

    def step(self, state: Tensor, action: Tensor) -> Tensor:
        return (state + 2 * action - 1).clamp(0, self.states - 1)

    def reward(self, state: Tensor) -> Tensor:
        return state / (self.states - 1)

    def walk(self, b: int, choose: Callable[[int, Tensor], Tensor] | None = None) -> tuple[Tensor, Tensor, Tensor]:
        """States (b t), actions (b t), rewards (b t); `choose(step, state)` acts, at random without."""
        state, states, actions = self.start(b), [], []
        for step in range(self.steps):
            action = ids(2, b) if choose is None else choose(step, state)
            states.append(state)
            actions.append(action)
            state = self.step(state, action)
        rewards = torch.zeros(b, self.steps)
        rewards[:, -1] = self.reward(state)
        return torch.stack(states, dim=1), torch.stack(actions, dim=1), rewards
