"""Train a recurrent cell that runs as often as each question needs: look-ups in a table, one after the other.

    python examples/act_rnn.py                            tables of 4 entries, 1 to 4 look-ups
    python examples/act_rnn.py --ponder-weight 0.05       cheaper steps: more of them

A question is a table, where to start, and how often to go on from what was found there. The cell can look up one entry
in a step. It says after each step how much it counts, and if that is enough (adaptive computation time,
arXiv:1603.08983); going on costs a little, in the second half of training more. What is printed is how often it was
right, and how many steps it took, for each number of look-ups.

Exit codes: 0 done, 2 something asked for is not possible, 130 interrupted with Ctrl-C.
"""

from __future__ import annotations

import argparse
import sys
from typing import NamedTuple

from common import packages

with packages():
    import torch
    import torch.nn.functional as F
    from common.options import bounded, exit_code, not_negative, positive, seed, size
    from torch import Tensor, nn
    from torch.nn.utils import clip_grad_norm_
    from tqdm import trange

    from x_transformers import ACT
    from x_transformers.act import Pondered


class Questions(NamedTuple):
    """How many look-ups (b), 0 for one; what the cell reads (b x); and what is found at last (b)."""

    hard: Tensor
    x: Tensor
    answer: Tensor


def read_arguments(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add('--look-ups', type=size, default=4, help='of the hardest questions (4)')
    add('--entries', type=bounded(int, 2), default=4, help='of a table (4)')
    add('--max-steps', type=size, default=8, help='of the cell (8)')
    add('--dim', type=size, default=32, help='width of the cell (32)')
    add('--ponder-weight', type=not_negative, default=0.3, help='cost of a step in the end; at first 0.01 (0.3)')
    add('--steps', type=size, default=3500, help='of training (3500)')
    add('--batch-size', type=size, default=256, help='questions in each (256)')
    add('--lr', type=positive, default=5e-3, help='learning rate, which falls to nothing (0.005)')
    add('--seed', type=seed, default=0, help='of weights and questions (0)')
    return parser.parse_args(argv)


def draw(args: argparse.Namespace, count: int) -> Questions:
    hard, found = torch.randint(0, args.look_ups, (count,)), torch.randint(0, args.entries, (count,))
    table = torch.rand(count, args.entries).argsort(dim=-1)
    start = F.one_hot(found, args.entries)
    for step in range(args.look_ups):
        found = torch.where(step <= hard, table.gather(1, found[:, None])[:, 0], found)
    often = torch.arange(args.look_ups) <= hard[:, None]  # as many ones as look-ups
    return Questions(hard, torch.cat((F.one_hot(table, args.entries).flatten(1), often, start), dim=1).float(), found)


class LookUp(nn.Module):
    """Ask the table for one entry, and go on with what it holds."""

    def __init__(self, args: argparse.Namespace) -> None:
        super().__init__()
        self.entries = args.entries
        self.ask = nn.Linear(args.dim, args.entries)
        self.cell = nn.GRUCell(2 * args.entries + args.look_ups + 1, args.dim)

    def forward(self, x: Tensor, state: Tensor) -> Tensor:
        table = x[:, : self.entries**2].unflatten(-1, (self.entries, self.entries))
        soft = self.ask(state).softmax(dim=-1)
        one = soft + (F.one_hot(soft.argmax(dim=-1), self.entries) - soft).detach()  # with the gradient of the soft one
        found = torch.einsum('b v, b v w -> b w', one, table)
        return self.cell(torch.cat((x[:, self.entries**2 :], found), dim=-1), state)


class Reader(nn.Module):
    def __init__(self, args: argparse.Namespace) -> None:
        super().__init__()
        self.act = ACT(LookUp(args), args.dim, eps=0.05, max_steps=args.max_steps, halt_bias_init=-1.0)
        self.to_answer = nn.Linear(args.dim, args.entries)

    def forward(self, x: Tensor) -> tuple[Tensor, Pondered]:
        """Logits of answers (b v), and how long it took."""
        found = self.act(x.new_zeros(len(x), self.act.dim), x)
        return self.to_answer(found.state), found


def train(args: argparse.Namespace) -> Reader:
    torch.manual_seed(args.seed)
    reader = Reader(args)
    optimizer = torch.optim.Adam(reader.parameters(), lr=args.lr)
    for step in trange(args.steps, dynamic_ncols=True):
        progress = step / args.steps
        dear = min(max(4 * progress - 2, 0.0), 1.0)  # from half to three quarters of training
        reader.act.ponder_weight = 0.01 + dear * (args.ponder_weight - 0.01)
        optimizer.param_groups[0]['lr'] = args.lr * (1 - progress)
        questions = draw(args, args.batch_size)
        logits, found = reader(questions.x)
        (F.cross_entropy(logits, questions.answer) + found.loss).backward()
        clip_grad_norm_(reader.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    return reader.eval()


@torch.no_grad()
def answers(reader: Reader, args: argparse.Namespace, count: int = 2000) -> tuple[Tensor, Tensor, Tensor]:
    """Of new questions: look-ups, steps, and whether the answer is right, each (b)."""
    questions = draw(args, count)
    logits, found = reader(questions.x)
    return questions.hard + 1, found.steps, logits.argmax(dim=-1) == questions.answer


def ranks(values: Tensor) -> Tensor:
    """Of each number among all; equal ones share the mean of theirs."""
    before = (values < values[:, None]).sum(dim=1)
    return before + ((values == values[:, None]).sum(dim=1) - 1) / 2


def correlation(one: Tensor, other: Tensor) -> float:
    """Spearman's, of ranks."""
    return torch.corrcoef(torch.stack((ranks(one), ranks(other))).float())[0, 1].item()


def work(args: argparse.Namespace) -> None:
    hard, steps, right = answers(train(args), args)
    print('look-ups  right  steps')
    for number in range(1, args.look_ups + 1):
        own = hard == number
        print(f'{number:8}  {right[own].float().mean():5.2f}  {steps[own].float().mean():5.2f}')
    print(
        f'all: {right.float().mean():.3f} right; rank correlation of look-ups and steps {correlation(hard, steps):.2f}'
    )


def main(argv: list[str] | None = None) -> int:
    """Run the script. Returns its exit code."""
    args = read_arguments(argv)
    return exit_code('act_rnn.py', lambda: work(args))


if __name__ == '__main__':
    sys.exit(main())
