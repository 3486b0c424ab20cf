"""Chess: how good is a position? An `Encoder` reads the board square by square and answers with one of eleven classes.

    python examples/evaluate_chess.py

Random legal positions, valued by material (pawn 1, knight and bishop 3, rook 5, queen 9) as the side to move sees it;
classes instead of a number, as Ruoss et al. 2024 (arXiv:2402.04494) found to be better.
"""

from __future__ import annotations

import argparse
import sys

from common import packages

with packages():
    import torch
    from common.toys import Score, fit, heads, run
    from torch import Tensor
    from torch.nn.functional import cross_entropy

    from x_transformers import Encoder, TransformerWrapper

PIECES, VALUES = '.PNBRQKpnbrqk', (0, 1, 3, 3, 5, 9, 0, -1, -3, -3, -5, -9, 0)
EDGES = torch.tensor([-9.5, -6.5, -4.5, -2.5, -0.5, 0.5, 2.5, 4.5, 6.5, 9.5])  # between classes
MEN = {'P': 8, 'N': 2, 'B': 2, 'R': 2, 'Q': 1}
STRAIGHT, ASLANT = ((0, 1), (0, -1), (1, 0), (-1, 0)), ((1, 1), (1, -1), (-1, 1), (-1, -1))
JUMPS = tuple((r, c) for r in (-2, -1, 1, 2) for c in (-2, -1, 1, 2) if abs(r) != abs(c))


def in_check(board: dict[tuple[int, int], str]) -> bool:
    """Whether the black king (rows go up the board) is attacked. White is to move, so it must not be."""
    row, column = next(at for at, piece in board.items() if piece == 'k')
    near = [(board.get((row + r, column + c)), r) for r, c in (*STRAIGHT, *ASLANT)]
    if any(piece == 'K' for piece, _ in near):
        return True
    if any(board.get((row - 1, column + c)) == 'P' for c in (-1, 1)):
        return True
    if any(board.get((row + r, column + c)) == 'N' for r, c in JUMPS):
        return True
    for lines, attackers in ((STRAIGHT, 'RQ'), (ASLANT, 'BQ')):
        for r, c in lines:
            for step in range(1, 8):
                piece = board.get((row + step * r, column + step * c))
                if piece is not None:
                    if piece in attackers:
                        return True
                    break
    return False


def position() -> list[str]:
    """The squares of a legal position with white to move, row by row, upwards."""
    while True:
        squares = [(at // 8, at % 8) for at in torch.randperm(64).tolist()]
        board = {squares.pop(): 'K', squares.pop(): 'k'}
        for piece, most in MEN.items():
            for side in (piece, piece.lower()):
                for _ in range(torch.randint(0, most + 1, ()).item()):
                    at = squares.pop()
                    if piece != 'P' or 0 < at[0] < 7:
                        board[at] = side
        if not in_check(board):
            return [board.get((row, column), '.') for row in range(8) for column in range(8)]


def flipped(squares: list[str]) -> list[str]:
    """The same position as the other side sees it."""
    return [piece.swapcase() for row in range(7, -1, -1) for piece in squares[8 * row : 8 * row + 8]]


def ids(positions: list[list[str]]) -> Tensor:
    return torch.tensor([[PIECES.index(piece) for piece in squares] for squares in positions])


def material(boards: Tensor) -> Tensor:
    return torch.tensor(VALUES)[boards].sum(dim=1)


def classes(boards: Tensor) -> Tensor:
    """Which class of values each board (b 64) is of; that of equal material is the middle."""
    return torch.bucketize(material(boards).float(), EDGES)


def task(args: argparse.Namespace) -> list[Score]:
    stack = Encoder(**heads(64), depth=2)
    net = TransformerWrapper(
        num_tokens=len(PIECES), max_seq_len=64, attn_layers=stack, average_pool_embed=True, logits_dim=len(EDGES) + 1
    )
    known, new = [position() for _ in range(3000)], [position() for _ in range(500)]
    boards = ids([*known, *map(flipped, known)])
    labels = classes(boards)

    def loss() -> Tensor:
        rows = torch.randint(0, len(boards), (args.batch_size,))
        return cross_entropy(net(boards[rows]), labels[rows])

    fit(net, loss, args)
    asked, seen_by_others = ids(new), ids(list(map(flipped, new)))
    shares = torch.bincount(labels, minlength=len(EDGES) + 1) / len(labels)
    prior = -shares.clamp(min=1e-9).log()[classes(asked)].mean()
    with torch.no_grad():
        found = cross_entropy(net(asked), classes(asked))
    negated = (material(seen_by_others) == -material(asked)).float().mean().item()
    return [
        Score('cross entropy beside that of the shares of classes', (found / prior).item(), 0.5, at_most=True),
        Score('values that the other side sees the other way round', negated, 1.0),
    ]


def main(argv: list[str] | None = None) -> int:
    """Run the script. Returns its exit code."""
    return run('evaluate_chess.py', __doc__, task, argv, steps=600)


if __name__ == '__main__':
    sys.exit(main())
