"""Offline reinforcement learning: is it better to plan by returns, or to clone walks, all of them or the best?

    python examples/clone_or_plan.py

Of random walks, a `DecisionTransformer` learns by returns (DT), by none (cloning: all returns are 0), and of the best
walks alone (percentile cloning). *Key to door*: three rooms of 5 places, 4 steps each; the key lies at one end of the
first room, the door at the other end of the last; only the first state says where. The one reward, 1, comes with the
last step, if both were touched. *Chain*: 9 places, 8 steps, 1/7 for each step to the right and -1/7 to the left, at
once or all at the end.

Chen et al. 2021, arXiv:2106.01345, sections 5.1, 5.3, 5.5
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Callable
from typing import NamedTuple

from common import packages

with packages():
    import torch
    from common.toys import Score, fit, heads, run
    from torch import Tensor
    from torch.nn.functional import one_hot

    from x_transformers import DecisionTransformer, Decoder
    from x_transformers.modalities.decision import Episode, returns_to_go

PLACES, ROOM = 5, 4  # of a room; its steps
CHAIN, CHAIN_STEPS = 9, 8


class World(NamedTuple):
    """`states` and `rewards` (b n ...) of walks by their `actions` (b n) so far; `begin` draws what is hidden (b)."""

    steps: int
    width: int
    choices: int
    begin: Callable[[int], Tensor]
    states: Callable[[Tensor, Tensor], Tensor]
    rewards: Callable[[Tensor, Tensor], Tensor]


def places_in_rooms(actions: Tensor) -> Tensor:
    """The place before each step, and after the last, (b n + 1); every room begins in its middle."""
    place, found = torch.full((len(actions),), PLACES // 2), []
    for step in range(actions.shape[1] + 1):
        if step % ROOM == 0 and step < 3 * ROOM:
            place = torch.full_like(place, PLACES // 2)
        found.append(place)
        if step < actions.shape[1]:
            place = (place + actions[:, step] - 1).clamp(0, PLACES - 1)
    return torch.stack(found, dim=1)


def states_of_rooms(side: Tensor, actions: Tensor) -> Tensor:
    """Where one is, (b n + 1 7), and at the first step on which side the key lies."""
    place = one_hot(places_in_rooms(actions), PLACES).float()
    sign = torch.zeros(*place.shape[:2], 2)
    sign[:, 0] = one_hot(side, 2).float()
    return torch.cat((place, sign), dim=-1)


def rewards_of_rooms(side: Tensor, actions: Tensor) -> Tensor:
    """1 at the last step (b n), if the key and the door were touched."""
    place = torch.full_like(side, PLACES // 2)
    key, door = side * (PLACES - 1), (1 - side) * (PLACES - 1)
    has_key, through = torch.zeros_like(side) > 0, torch.zeros_like(side) > 0
    for step in range(actions.shape[1]):
        if step % ROOM == 0:
            place = torch.full_like(place, PLACES // 2)
        place = (place + actions[:, step] - 1).clamp(0, PLACES - 1)
        has_key = has_key | ((place == key) & (step < ROOM))
        through = through | ((place == door) & (step >= 2 * ROOM))
    rewards = torch.zeros(actions.shape)
    if actions.shape[1] == 3 * ROOM:
        rewards[:, -1] = (has_key & through).float()
    return rewards


def places_of_chain(start: Tensor, actions: Tensor) -> Tensor:
    place, found = start, [start]
    for step in range(actions.shape[1]):
        place = (place + 2 * actions[:, step] - 1).clamp(0, CHAIN - 1)
        found.append(place)
    return torch.stack(found, dim=1)


def rewards_of_chain(start: Tensor, actions: Tensor) -> Tensor:
    place = places_of_chain(start, actions)
    return place.diff(dim=1).float() / (CHAIN_STEPS - 1)


def delayed(rewards: Tensor) -> Tensor:
    """The same sum, all of it at the last step."""
    late = torch.zeros_like(rewards)
    late[:, -1] = rewards.sum(dim=1)
    return late


WORLDS = {
    'key to door': World(
        3 * ROOM, PLACES + 2, 3, lambda b: torch.randint(0, 2, (b,)), states_of_rooms, rewards_of_rooms
    ),
    'chain': World(
        CHAIN_STEPS, CHAIN, 2, lambda b: torch.ones(b, dtype=torch.long),
        lambda start, actions: one_hot(places_of_chain(start, actions), CHAIN).float(), rewards_of_chain,
    ),
}  # fmt: skip


def best(returns: Tensor, share: float) -> Tensor:
    """Indices of the best episodes: a share of all, rounded up; of equal ones those that come first."""
    return returns.sort(descending=True, stable=True).indices[: math.ceil(share * len(returns) - 1e-9)]


def learned(
    world: World, hidden: Tensor, actions: Tensor, rewards: Tensor, args: argparse.Namespace, context: int | None = None
) -> DecisionTransformer:
    """A model of walks (b n) with these rewards."""
    steps = world.steps if context is None else context
    stack = Decoder(**heads(32, 2), depth=2)
    net = DecisionTransformer(
        world.width, world.choices, stack, discrete=True, context_len=steps, max_ep_len=world.steps
    )
    states, rtg = world.states(hidden, actions)[:, :-1], returns_to_go(rewards)

    def loss() -> Tensor:
        rows = torch.randint(0, len(actions), (args.batch_size,))
        first = 0 if context is None else int(torch.randint(0, world.steps - steps + 1, ()))
        window = slice(first, first + steps)
        seen = dict(states=states[rows, window], actions=actions[rows, window], rtg=rtg[rows, window])
        return net.loss(dict(**seen, timesteps=torch.arange(world.steps)[window]))

    return fit(net, loss, args)


def earned(world: World, net: DecisionTransformer, target: float, late: bool = False, count: int = 400) -> float:
    """Mean return of episodes whose actions the model draws, asked for a return."""
    hidden, episode = world.begin(count), Episode()
    actions = torch.zeros(count, 0, dtype=torch.long)
    for _ in range(world.steps):
        state = world.states(hidden, actions)[:, -1]
        actions = torch.cat((actions, net.act(episode.observe(state), target, temperature=1.0).unsqueeze(1)), dim=1)
        rewards = world.rewards(hidden, actions)
        rewards = delayed(rewards) * (actions.shape[1] == world.steps) if late else rewards
        episode.receive(rewards[:, -1])
    return world.rewards(hidden, actions).sum(dim=1).mean().item()


def compared(name: str, walks: int, args: argparse.Namespace) -> dict[str, float]:
    """Mean returns of the walks, of the three ways to learn from them, and of what shows why."""
    world = WORLDS[name]
    hidden, actions = world.begin(walks), torch.randint(0, world.choices, (walks, world.steps))
    rewards = world.rewards(hidden, actions)
    returns = rewards.sum(dim=1)
    top = best(returns, (returns > 0).float().mean().item() if name == 'key to door' else 0.1)
    found = {'walks': returns.mean().item()}
    nothing = torch.zeros_like(rewards)
    found['cloning'] = earned(world, learned(world, hidden, actions, nothing, args), 0.0)
    found['percentile'] = earned(world, learned(world, hidden[top], actions[top], nothing[top], args), 0.0)
    found['DT'] = earned(world, learned(world, hidden, actions, rewards, args), 1.0)
    if name == 'key to door':
        found['context 1'] = earned(world, learned(world, hidden, actions, rewards, args, context=1), 1.0)
    else:
        found['DT, delayed'] = earned(world, learned(world, hidden, actions, delayed(rewards), args), 1.0, late=True)
    return found


def task(args: argparse.Namespace) -> list[Score]:
    scores: list[Score] = []
    for name, walks, share in (('key to door', 100, 1.0), ('chain', 1000, 0.5)):
        own = argparse.Namespace(**{**vars(args), 'steps': max(int(share * args.steps), 1)})
        found = compared(name, walks, own)
        print(name, ' '.join(f'{kind} {value:.3f}' for kind, value in found.items()), flush=True)
        by_chance, far = found['walks'], 0.3 if name == 'key to door' else 0.5
        scores.append(Score(f'{name}: cloning, beyond the walks', found['cloning'] - by_chance, 0.08, at_most=True))
        scores += [Score(f'{name}: {kind}', found[kind], far) for kind in ('percentile', 'DT')]
        if 'context 1' in found:
            scores.append(Score(f'{name}: DT, context 1', found['context 1'], 0.2, at_most=True))
        else:
            scores.append(Score(f'{name}: loss by delay', found['DT'] - found['DT, delayed'], 0.1, at_most=True))
    return scores


def main(argv: list[str] | None = None) -> int:
    """Run the script. Returns its exit code."""
    return run('clone_or_plan.py', __doc__, task, argv, steps=500)


if __name__ == '__main__':
    sys.exit(main())
