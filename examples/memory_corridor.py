"""Train an agent by reinforcement to remember what it saw at the beginning of a corridor, through memories alone.

    python examples/memory_corridor.py                     12 layers with the gates of GTrXL
    python examples/memory_corridor.py --gate none         the same without, norms after each branch: learns nothing
    python examples/memory_corridor.py --length 48         a longer corridor

The first observation says left or right; at the end of the corridor, behind noise that looks like that cue, the agent
has to go there, for a reward of 1, else -1. It reads the corridor a few steps at a time, so that nothing but the
memories of earlier segments can tell it. Policy and value are learned by an advantage actor-critic, in many corridors
at once. As in GTrXL (arXiv:1910.06764), gates in place of residual sums let a deep agent learn at a rate that breaks
it otherwise.

Exit codes: 0 done, 2 something asked for is not possible, 130 interrupted with Ctrl-C.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from typing import NamedTuple

from common import packages

with packages():
    import torch
    import torch.nn.functional as F
    from common.options import bounded, exit_code, positive, seed, size
    from torch import Tensor, nn
    from torch.nn.utils import clip_grad_norm_

    from x_transformers import ContinuousTransformerWrapper, Decoder, presets
    from x_transformers.features.gates import GATES

HEADS, ACTIONS, SEEN = 2, 2, 4  # an observation: the cue for left, for right, noise, and whether it is the end


class Walk(NamedTuple):
    """What an agent did at the end of each corridor (b): log probabilities of actions (b a), which it took, the reward,
    and the reward that it expected."""

    log_probs: Tensor
    action: Tensor
    reward: Tensor
    value: Tensor


def read_arguments(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add('--gate', choices=(*GATES, 'none'), default='gtrxl', help='in place of residual sums (gtrxl)')
    add('--length', type=bounded(int, 2), default=12, help='steps of a corridor (12)')
    add('--segment', type=size, default=4, help='steps that are read at once (4)')
    add('--steps', type=size, default=300, help='of training (300)')
    add('--corridors', type=size, default=64, help='in each step (64)')
    add('--dim', type=bounded(int, 2 * HEADS), default=32, help='width of the agent (32)')
    add('--depth', type=size, default=12, help='layers of the agent (12)')
    add('--lr', type=positive, default=1e-2, help='learning rate of the first step, 0 in the last (0.01)')
    add('--seed', type=seed, default=0, help='of weights and corridors (0)')
    args = parser.parse_args(argv)
    if args.dim % (2 * HEADS):
        parser.error(f'--dim {args.dim} cannot be divided by {2 * HEADS}')
    return args


def build_agent(args: argparse.Namespace) -> nn.Module:
    sizes = dict(dim=args.dim, depth=args.depth, heads=HEADS, attn_dim_head=args.dim // HEADS)
    around = dict(dim_in=SEEN, dim_out=ACTIONS + 1, max_mem_len=args.length)
    if args.gate != 'none':
        how = {'gate': args.gate, 'pre_relu': args.gate == 'gtrxl'}
        return presets.build(presets.gtrxl(**sizes, **around, residual_fn_kwargs=how))
    layers = Decoder(**sizes, xl_rel_pos=True, pre_norm=False, verbose=False)
    return ContinuousTransformerWrapper(attn_layers=layers, **around)


def corridors(args: argparse.Namespace) -> tuple[Tensor, Tensor]:
    """Observations (b n 4), and which way is right (b)."""
    way = torch.randint(0, ACTIONS, (args.corridors,))
    seen = torch.zeros(args.corridors, args.length, SEEN)
    seen[:, 1:-1, :3] = torch.randn(args.corridors, args.length - 2, 3)
    seen[:, 0, :2], seen[:, -1, 3] = F.one_hot(way, ACTIONS).float(), 1.0
    return seen, way


def walk(agent: nn.Module, args: argparse.Namespace) -> Walk:
    """Corridors from the beginning to the end, a segment at a time."""
    seen, way = corridors(args)
    mems = None
    for segment in seen.split(args.segment, dim=1):
        out, mems = agent(segment, mems=mems, return_mems=True)
    log_probs = out[:, -1, :ACTIONS].log_softmax(dim=-1)
    action = torch.multinomial(log_probs.exp(), 1).squeeze(1)
    return Walk(log_probs, action, 2.0 * (action == way) - 1.0, out[:, -1, ACTIONS])


def loss_of(found: Walk) -> Tensor:
    """Policy gradient with the value as a baseline, the error of the value, and a little entropy."""
    advantage = found.reward - found.value.detach()
    policy = -(found.log_probs.gather(1, found.action[:, None]).squeeze(1) * advantage).mean()
    entropy = -(found.log_probs.exp() * found.log_probs).sum(dim=-1).mean()
    return policy + 0.5 * F.mse_loss(found.value, found.reward) - 0.01 * entropy


def train(args: argparse.Namespace) -> Iterator[float]:
    """The part of corridors that ended well, of each step."""
    torch.manual_seed(args.seed)
    agent = build_agent(args)
    optimizer = torch.optim.Adam(agent.parameters(), lr=args.lr)
    for step in range(args.steps):
        optimizer.param_groups[0]['lr'] = args.lr * (1 - step / args.steps)
        found = walk(agent, args)
        loss_of(found).backward()
        clip_grad_norm_(agent.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        yield (found.reward > 0).float().mean().item()


def work(args: argparse.Namespace) -> None:
    print('steps  ended well', flush=True)
    found: list[float] = []
    for step, good in enumerate(train(args), 1):
        found.append(good)
        if step % max(args.steps // 10, 1) == 0 or step == args.steps:
            print(f'{step:5}  {sum(found) / len(found):10.2f}', flush=True)
            found.clear()


def main(argv: list[str] | None = None) -> int:
    """Run the script. Returns its exit code."""
    args = read_arguments(argv)
    return exit_code('memory_corridor.py', lambda: work(args))


if __name__ == '__main__':
    sys.exit(main())
