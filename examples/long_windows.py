"""Train a language model in stages: windows and sequences grow, the learning rate falls.

    python examples/long_windows.py                                       windows of 16, 32 and 64 bytes
    python examples/long_windows.py --window-schedule 8,32,500 16,64,250  any windows, lengths and steps
    python examples/long_windows.py --data path/to/folder                 other text than Python's standard library

A model learns what is near first, on short sequences, which are cheap; then `sparsify_` doubles its windows and the
longest length of its sequences, in place: all that was learned stays. As in Longformer (arXiv:2004.05150), two heads of
the upper layers look at every other token of a window that is twice as wide. Positions are rotary, so that nearness
looks the same in each stage. Validation reads the same text in each, cut into sequences of its length.

Exit codes: 0 done, 2 something asked for is not possible, 130 interrupted with Ctrl-C.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from types import SimpleNamespace

from common import packages

with packages():
    import torch
    from common.options import Stop, bounded, exit_code, positive, seed, size, some_text
    from common.texts import check_enough, fixed_windows, random_crops, read_corpus
    from torch import Tensor
    from torch.nn.utils import clip_grad_norm_
    from tqdm import trange

    from x_transformers import AutoregressiveWrapper, Decoder, TransformerWrapper, sparsify_
    from x_transformers.patterns import Pattern, Sliding

HEADS = 4


@dataclass(frozen=True)
class Stage:
    window: int
    length: int
    steps: int


WINDOW_SCHEDULE = [Stage(16, 64, 300), Stage(32, 128, 150), Stage(64, 256, 75)]


def stage(text: str) -> Stage:
    try:
        return Stage(*map(bounded(int, 1), text.split(',')))
    except (argparse.ArgumentTypeError, TypeError):
        wanted = 'WINDOW,LENGTH,STEPS, integers of at least 1'
        raise argparse.ArgumentTypeError(f'got {text!r}, it must be {wanted}') from None


def read_arguments(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add('--window-schedule', type=stage, nargs='+', default=WINDOW_SCHEDULE, metavar='WINDOW,LENGTH,STEPS')
    add('--data', type=some_text, metavar='PATH', help="text file or folder (Python's standard library)")
    add('--max-bytes', type=size, default=20_000_000, help='read no more of it (20000000)')
    add('--dim', type=bounded(int, HEADS), default=128, help='width of the model (128)')
    add('--depth', type=size, default=4, help='number of layers (4)')
    add('--lr', type=positive, default=2e-3, help='highest learning rate of the first stage, half of it in the next')
    add('--tokens', type=size, default=1024, help='in a batch, whatever the length of its sequences (1024)')
    add('--val-windows', type=size, default=64, help='sequences of the greatest length to validate on (64)')
    add('--seed', type=seed, default=0, help='of weights and batches (0)')
    args = parser.parse_args(argv)
    for before, after in pairwise(args.window_schedule):
        if after.length < before.length:
            parser.error(f'--window-schedule: sequences of {after.length} after those of {before.length}, not longer')
    return args


def windows(window: int, depth: int) -> tuple[Pattern, ...]:
    """Of each layer. In the upper half, two heads see as many tokens twice as far."""
    far = Sliding(window, dilation=(1, 1, 2, 2))
    return tuple(far if layer >= (depth + 1) // 2 else Sliding(window) for layer in range(depth))


def build_model(args: argparse.Namespace) -> AutoregressiveWrapper:
    if args.dim % HEADS:
        raise Stop(f'--dim {args.dim} cannot be divided among {HEADS} heads')
    first = args.window_schedule[0]
    sizes = dict(dim=args.dim, depth=args.depth, heads=HEADS, attn_dim_head=args.dim // HEADS)
    layers = Decoder(**sizes, attn_sparse_pattern=windows(first.window, args.depth), rotary_pos_emb=True)
    return AutoregressiveWrapper(TransformerWrapper(num_tokens=256, max_seq_len=first.length, attn_layers=layers))


@torch.no_grad()
def score(model: AutoregressiveWrapper, sequences: Tensor) -> float:
    """Bits per byte."""
    model.eval()
    found = sum(model(some).item() * len(some) for some in sequences.split(64)) / len(sequences)
    model.train()
    return found / math.log(2)


def train(args: argparse.Namespace) -> Iterator[tuple[Stage, float, float]]:
    """Each stage, with its learning rate and what validation gives at its end."""
    torch.manual_seed(args.seed)
    model, draws = build_model(args), torch.Generator().manual_seed(args.seed)
    longest = max(stage.length for stage in args.window_schedule)
    text = SimpleNamespace(**vars(args), seq_len=longest, batch_size=1)
    corpus = read_corpus(text)
    check_enough(corpus, text, 'bytes')
    known = fixed_windows(corpus[1], text)
    for number, now in enumerate(args.window_schedule):
        sparsify_(model.net, windows(now.window, args.depth), max_seq_len=now.length)
        text.seq_len, text.batch_size = now.length, max(args.tokens // now.length, 1)
        lr = args.lr / 2**number
        optimizer = torch.optim.AdamW(model.parameters(), lr=lr, betas=(0.9, 0.95), weight_decay=0.1)
        for step in trange(now.steps, desc=f'windows of {now.window}', dynamic_ncols=True):
            warm_up = min(1.0, (step + 1) / max(1, now.steps // 20))
            optimizer.param_groups[0]['lr'] = lr * warm_up * (0.55 + 0.45 * math.cos(math.pi * step / now.steps))
            model(random_crops(corpus[0], text, draws)).backward()
            clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
        yield now, lr, score(model, known.unfold(1, now.length, now.length).flatten(0, 1))


def work(args: argparse.Namespace) -> None:
    print('window  length  steps  learning rate  bits per byte', flush=True)
    for now, lr, found in train(args):
        print(f'{now.window:6}  {now.length:6}  {now.steps:5}  {lr:13.5f}  {found:13.3f}', flush=True)


def main(argv: list[str] | None = None) -> int:
    """Run the script. Returns its exit code."""
    args = read_arguments(argv)
    return exit_code('long_windows.py', lambda: work(args))


if __name__ == '__main__':
    sys.exit(main())
