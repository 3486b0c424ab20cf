"""Small tasks with a bar: learn from data that is made as it goes, measure, and say whether that was good enough."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeVar

import torch
from torch import Tensor, nn
from torch.nn.utils import clip_grad_norm_
from torch.nn.utils.rnn import pad_sequence
from tqdm import trange

from common.options import Stop, exit_code, positive, seed, size

Model = TypeVar('Model', bound=nn.Module)
PAD, END, START = 0, 1, 2  # ids in every vocabulary


class Score(NamedTuple):
    """What was measured, and what it must be at least, or at most."""

    what: str
    value: float
    bar: float
    at_most: bool = False

    @property
    def good(self) -> bool:
        return self.value <= self.bar if self.at_most else self.value >= self.bar

    def __str__(self) -> str:
        return f'{self.what}: {self.value:.3f} (bar: at {"most" if self.at_most else "least"} {self.bar:g})'


class Words:
    """Words, or characters, as ids behind those for padding, the end and the start."""

    def __init__(self, words: Sequence[str]) -> None:
        self.words = ['<pad>', '<end>', '<start>', *words]
        self.ids = {word: index for index, word in enumerate(self.words)}

    def __len__(self) -> int:
        return len(self.words)

    def read(self, texts: Sequence[Sequence[str]], end: bool = False) -> Tensor:
        """Ids (b n) of texts, padding behind them."""
        rows = [torch.tensor([self.ids[word] for word in text] + [END] * end) for text in texts]
        return pad_sequence(rows, batch_first=True, padding_value=PAD)

    def written(self, row: Tensor) -> list[str]:
        """The words of ids up to the end."""
        ids = row.tolist()
        return [self.words[index] for index in (ids[: ids.index(END)] if END in ids else ids) if index != PAD]


def same_rows(made: Tensor, wanted: Tensor) -> Tensor:
    """Which rows (b) of ids are what is wanted (b n), up to the end of each; what follows it does not count."""
    n = max(made.shape[1], wanted.shape[1])
    made, wanted = (nn.functional.pad(ids, (0, n - ids.shape[1]), value=PAD) for ids in (made, wanted))
    counts = (wanted == END).cumsum(dim=1) - (wanted == END).long() == 0
    return ((made == wanted) | ~counts).all(dim=1)


def heads(dim: int, count: int = 4) -> dict[str, int]:
    """Flags of a stack whose heads share its width."""
    return dict(dim=dim, heads=count, attn_dim_head=dim // count)


def fit(model: Model, loss: Callable[[], Tensor], args: argparse.Namespace) -> Model:
    """Learn; `loss` draws a batch. Returns the model, in eval mode."""
    optimizer = torch.optim.Adam([weight for weight in model.parameters() if weight.requires_grad], lr=args.lr)
    for step in trange(args.steps, dynamic_ncols=True):
        optimizer.param_groups[0]['lr'] = args.lr * min(1.0, (step + 1) / 50) * (1 - step / args.steps)
        loss().backward()
        clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    return model.eval()


def read_arguments(text: str | None, argv: list[str] | None, steps: int, batch: int, lr: float) -> argparse.Namespace:
    """The options of every small task."""
    parser = argparse.ArgumentParser(description=text, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add('--steps', type=size, default=steps, help=f'of training ({steps})')
    add('--batch-size', type=size, default=batch, help=f'rows of a step ({batch})')
    add('--lr', type=positive, default=lr, help=f'highest learning rate, 0 in the last step ({lr})')
    add('--seed', type=seed, default=0, help='of weights and data (0)')
    return parser.parse_args(argv)


def run(
    script: str,
    text: str | None,
    task: Callable[[argparse.Namespace], list[Score]],
    argv: list[str] | None,
    *,
    steps: int,
    batch: int = 64,
    lr: float = 2e-3,
) -> int:
    """Do a task and print what was measured.  Exit codes: 0 good, 1 below a bar, 2 not possible, 130 interrupted."""
    args = read_arguments(text, argv, steps, batch, lr)

    def work() -> None:
        torch.manual_seed(args.seed)
        scores = task(args)
        print(*scores, sep='\n')
        if missed := [score.what for score in scores if not score.good]:
            raise Stop(f'below the bar: {", ".join(missed)}', 1)

    return exit_code(script, work)
