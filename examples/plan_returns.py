"""Reinforcement learning from records: of random walks on a chain a `DecisionTransformer` learns to walk to its end.

    python examples/plan_returns.py

An episode pays, at its end, for how far to the right it came. Asked for the most, the model walks there, though hardly
any walk that it has seen did.
"""

from __future__ import annotations

import argparse
import sys

from common import packages

with packages():
    import torch
    from common.toys import Score, fit, heads, run
    from torch import Tensor
    from torch.nn.functional import one_hot

    from x_transformers import DecisionTransformer, Decoder
    from x_transformers.modalities.decision import Episode, returns_to_go

STATES, STEPS = 9, 8


def moved(state: Tensor, action: Tensor) -> Tensor:
    return (state + 2 * action - 1).clamp(0, STATES - 1)


def pay(state: Tensor) -> Tensor:
    """Of an episode that ends there: from 0 to 1."""
    return state / (STATES - 1)


def walks(count: int) -> tuple[Tensor, Tensor, Tensor]:
    """States, actions and rewards (b n) of walks by chance, from any place of the left half."""
    state, found = torch.randint(0, 2, (count,)), []
    for step in range(STEPS):
        action = torch.randint(0, 2, (count,))
        after = moved(state, action)
        found.append((state, action, pay(after) * (step == STEPS - 1)))
        state = after
    states, actions, rewards = (torch.stack(part, dim=1) for part in zip(*found, strict=True))
    return states, actions, rewards


def task(args: argparse.Namespace) -> list[Score]:
    stack = Decoder(**heads(32, 2), depth=2)
    net = DecisionTransformer(STATES, 2, stack, discrete=True, context_len=STEPS, max_ep_len=STEPS)
    states, actions, rewards = walks(2000)

    def loss() -> Tensor:
        rows = torch.randint(0, len(states), (args.batch_size,))
        seen = dict(states=one_hot(states[rows], STATES).float(), actions=actions[rows])
        return net.loss(dict(**seen, rtg=returns_to_go(rewards[rows]), timesteps=torch.arange(STEPS)))

    fit(net, loss, args)
    episode, state = Episode(), torch.ones(200, dtype=torch.long)
    for step in range(STEPS):
        action = net.act(episode.observe(one_hot(state, STATES).float()), 1.0)
        state = moved(state, action)
        episode.receive(pay(state) * (step == STEPS - 1))
    return [Score('return, of the most there is', pay(state).mean().item(), 0.9)]


def main(argv: list[str] | None = None) -> int:
    """Run the script. Returns its exit code."""
    return run('plan_returns.py', __doc__, task, argv, steps=400)


if __name__ == '__main__':
    sys.exit(main())
