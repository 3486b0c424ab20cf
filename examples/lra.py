"""Tasks of the Long Range Arena that need no download, and readers of files for the others (arXiv:2011.04006).

    python examples/lra.py                     short ListOps, learned by an encoder: the share of right answers
    python examples/lra.py --write DIR         the task of the paper, 500 to 2,000 tokens, into DIR

    listops(n)                 nested operations on digits, and their values
    pathfinder(n, side)        drawings of dashed paths: do the two dots mark the ends of one?
    text_bytes(folder, n)      texts of classes, one folder each, as bytes
    retrieval(pairs, n)        two texts each, as bytes; `pair_features` compares what two towers make of them
    image_gray(path)           the binary files of CIFAR-10 as 1,024 shades of grey

Exit codes: 0 done, 2 something asked for is not possible, 130 interrupted with Ctrl-C.
"""

from __future__ import annotations

import argparse
import math
import random
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from common import packages

with packages():
    import torch
    import torch.nn.functional as F
    from common.options import bounded, exit_code, positive, seed, size
    from safetensors.torch import load_file, save
    from torch import Tensor, nn

    from x_transformers import Encoder, TransformerWrapper
    from x_transformers.core.files import replace_file


class Rows(NamedTuple):
    """Rows of one task.

    ids     b n   PAD behind the end of a row
    mask    b n   True for what is real
    labels  b
    """

    ids: Tensor
    mask: Tensor
    labels: Tensor


# ListOps

DIGITS, CLOSE, PAD = tuple('0123456789'), ']', 15
OPERATORS: dict[str, Callable[[list[int]], int]] = {
    'MIN': min,
    'MAX': max,
    'MED': lambda values: sum(sorted(values)[(len(values) - 1) // 2 : len(values) // 2 + 1]) // (2 - len(values) % 2),
    'SM': lambda values: sum(values) % 10,
}
VOCABULARY = (*DIGITS, *(f'[{name}' for name in OPERATORS), CLOSE)
LEAF, TRIES = 0.75, 100_000


def tree(draws: random.Random, depth: int, most: int, operators: Sequence[str], room: int) -> tuple[list[str], int]:
    """Tokens of a node and its value; longer ones than `room` are given up, and too long all the same."""
    if depth == 0 or draws.random() < LEAF:
        digit = draws.randrange(10)
        return [str(digit)], digit
    name = draws.choice(operators)
    tokens, values = [f'[{name}'], []
    for _ in range(draws.randint(2, most)):
        own, value = tree(draws, depth - 1, most, operators, room - len(tokens))
        tokens += own
        values.append(value)
        if len(tokens) > room:
            break
    return [*tokens, CLOSE], OPERATORS[name](values)


def padded(rows: Sequence[Sequence[int]], labels: Sequence[int], pad: int = PAD) -> Rows:
    longest = max(map(len, rows))
    ids = torch.tensor([[*row, *[pad] * (longest - len(row))] for row in rows])
    lengths = torch.tensor([len(row) for row in rows])
    return Rows(ids, torch.arange(longest) < lengths.unsqueeze(-1), torch.tensor(labels))


def listops(
    n: int,
    max_depth: int = 10,
    max_args: int = 10,
    min_len: int = 500,
    max_len: int = 2000,
    seed: int = 0,
    operators: Sequence[str] = tuple(OPERATORS),
) -> Rows:
    """Different expressions of `min_len` to `max_len` tokens, and their values from 0 to 9.

    A node is a digit with probability 0.75, else an operator of 2 to `max_args` nodes; at `max_depth` it is a digit.
    The same seed gives the same rows, and fewer of them are the first ones: parts of one call have none in common.
    Raises ValueError where no, or too few, such expressions are found.
    """
    draws, found, missed = random.Random(seed), {}, 0
    place = {token: at for at, token in enumerate(VOCABULARY)}
    while len(found) < n:
        tokens, value = tree(draws, max_depth, max_args, operators, max_len)
        row = tuple(place[token] for token in tokens)
        if min_len <= len(row) <= max_len and row not in found:
            found[row], missed = value, 0
            continue
        missed += 1
        if missed == TRIES:
            limits = f'{min_len} to {max_len} tokens, {max_depth} deep, of at most {max_args}'
            raise ValueError(f'{len(found)} of {n} expressions of {limits}: {TRIES} more draws gave no other one')
    return padded(list(found), list(found.values()))


def cached_listops(folder: Path, n: int, seed: int = 0, **options: int) -> Rows:
    """The same, from a file in a folder, which is written if it is not there."""
    words = [f'{name}_{value}' for name, value in sorted(options.items())]
    path = Path(folder) / ('-'.join(['listops', f'n_{n}', f'seed_{seed}', *words]) + '.safetensors')
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        with replace_file(path) as file:
            file.write(save(listops(n, seed=seed, **options)._asdict()))
    return Rows(**load_file(path))


# paths


def walk(draws: random.Random, side: int, steps: int) -> list[tuple[float, float]] | None:
    """A path that turns a little at every step, or None where it leaves the image."""
    y, x = draws.uniform(2, side - 3), draws.uniform(2, side - 3)
    angle, path = draws.uniform(0, 2 * math.pi), [(y, x)]
    for _ in range(steps):
        angle += draws.uniform(-0.35, 0.35)
        y, x = y + math.sin(angle), x + math.cos(angle)
        if not (1 <= y <= side - 2 and 1 <= x <= side - 2):
            return None
        path.append((y, x))
    return path


def apart(one: Iterable[tuple[float, float]], others: Iterable[list[tuple[float, float]]], least: float) -> bool:
    return all(math.dist(a, b) >= least for other in others for b in other for a in one)


def pathfinder(n: int, side: int = 32, paths: int = 3, seed: int = 0) -> Rows:
    """Drawings of dashed paths that do not meet, with two dots: the ends of one path (1), or of two (0).

    ids  b (side side)   0 nothing, 1 a dash, 2 a dot, row after row
    """
    draws, rows, labels = random.Random(seed), [], []
    steps, tries = max(side // 2, 4), 0
    while len(rows) < n:
        drawn: list[list[tuple[float, float]]] = []
        while len(drawn) < paths and tries < TRIES:
            tries += 1
            path = walk(draws, side, steps)
            if path is not None and apart(path, drawn, 4.5):
                drawn.append(path)
        if len(drawn) < paths:
            raise ValueError(f'{paths} paths of {steps} steps do not fit into {side} x {side} pixels')
        tries, label = 0, draws.randrange(2)
        image = [0] * side**2
        for path in drawn:
            for at, (y, x) in enumerate(path):
                if at % 3 != 2:  # two of three pixels are a dash
                    image[round(y) * side + round(x)] = 1
        first, second = drawn[0][0], drawn[0][-1] if label else drawn[1][-1]
        for y, x in (first, second):
            image[round(y) * side + round(x)] = 2
        rows.append(image)
        labels.append(label)
    return padded(rows, labels, 0)


# files


def bytes_of(texts: Sequence[bytes], labels: Sequence[int], n: int) -> Rows:
    """The first n bytes of texts, each plus one; 0 is padding."""
    return padded([[byte + 1 for byte in text[:n]] or [0] for text in texts], labels, 0)


def text_bytes(folder: Path, n: int = 4000) -> tuple[list[str], Rows]:
    """Names of classes, and texts in a folder of each name."""
    names = sorted(path.name for path in Path(folder).iterdir() if path.is_dir())
    files = [(path, label) for label, name in enumerate(names) for path in sorted((Path(folder) / name).iterdir())]
    if len(names) < 2 or not files:
        counts = f'{len(names)} folders with {len(files)} files'
        raise ValueError(f'{folder} holds {counts}, it must hold two classes or more')
    return names, bytes_of([path.read_bytes() for path, _ in files], [label for _, label in files], n)


def retrieval(pairs: Sequence[tuple[bytes, bytes, int]], n: int = 4000) -> tuple[Rows, Rows]:
    """Two texts each, and whether they belong together."""
    labels = [label for _, _, label in pairs]
    return tuple(bytes_of([pair[side] for pair in pairs], labels, n) for side in (0, 1))


def pair_features(u: Tensor, v: Tensor) -> Tensor:
    """What is read of two vectors:  b d, b d -> b (4 d)"""
    return torch.cat((u, v, u * v, u - v), dim=-1)


def image_gray(path: Path) -> Rows:
    """Images of a binary file of CIFAR-10, whose rows are a label and 3 x 1,024 bytes, as shades of grey."""
    data = torch.frombuffer(bytearray(Path(path).read_bytes()), dtype=torch.uint8)
    if len(data) == 0 or len(data) % 3073:
        raise ValueError(f'{path} has {len(data)} bytes, which are no rows of 3,073')
    rows = data.view(-1, 3073)
    shades = torch.tensor([0.299, 0.587, 0.114]) @ rows[:, 1:].view(-1, 3, 1024).float()
    ids = shades.round().long()
    return Rows(ids, torch.ones_like(ids, dtype=torch.bool), rows[:, 0].long())


# a first try


def read_arguments(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add('--steps', type=size, default=1500, help='of training (1500)')
    add('--batch-size', type=size, default=64, help='expressions of a step (64)')
    add('--dim', type=bounded(int, 4), default=64, help='width of the model, of 4 heads (64)')
    add('--depth', type=size, default=2, help='its blocks (2)')
    add('--rows', type=bounded(int, 10), default=3000, help='expressions, a tenth of them for the test (3000)')
    add('--lr', type=positive, default=2e-3, help='learning rate of the first step, 0 in the last (0.002)')
    add('--seed', type=seed, default=0, help='of weights and expressions (0)')
    add('--write', type=Path, help='write the task of the paper into this folder, and train nothing')
    args = parser.parse_args(argv)
    if args.dim % 4:
        parser.error(f'--dim {args.dim} cannot be divided by 4')
    return args


def train(args: argparse.Namespace) -> float:
    """The share of right answers on expressions that were not seen."""
    torch.manual_seed(args.seed)
    rows = listops(args.rows, 2, 3, 4, 12, seed=args.seed, operators=('MIN', 'MAX'))
    known = len(rows.ids) - len(rows.ids) // 10
    stack = Encoder(dim=args.dim, depth=args.depth, heads=4, attn_dim_head=args.dim // 4)
    model = TransformerWrapper(
        num_tokens=16, max_seq_len=rows.ids.shape[1], attn_layers=stack, logits_dim=10, average_pool_embed=True
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=args.lr)
    for step in range(args.steps):
        optimizer.param_groups[0]['lr'] = args.lr * min(1.0, step / 20) * (1 - step / args.steps)
        some = torch.randint(0, known, (args.batch_size,))
        F.cross_entropy(model(rows.ids[some], mask=rows.mask[some]), rows.labels[some]).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    with torch.no_grad():
        found = model.eval()(rows.ids[known:], mask=rows.mask[known:]).argmax(dim=-1)
    return (found == rows.labels[known:]).float().mean().item()


def work(args: argparse.Namespace) -> None:
    if args.write is not None:
        rows = cached_listops(args.write, args.rows, args.seed)
        lengths = f'{rows.mask.sum(dim=1).min()} to {rows.ids.shape[1]} tokens'
        print(f'{len(rows.ids)} expressions of {lengths} in {args.write}')
        return
    print(f'{train(args):.1%} of the expressions that were not seen have the right value')


def main(argv: list[str] | None = None) -> int:
    """Run the script. Returns its exit code."""
    args = read_arguments(argv)
    return exit_code('lra.py', lambda: work(args))


if __name__ == '__main__':
    sys.exit(main())
