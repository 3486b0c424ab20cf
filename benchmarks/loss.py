"""The loss over a large vocabulary alone, forward and backward: time as multiples of the floor, and peak memory.

    python benchmarks/loss.py
    python benchmarks/loss.py --device cuda --dtype bfloat16 --batch 8

One hidden state per token, a linear head without bias, the mean cross entropy, gradients of both. The floor is the
three matrix products alone,  z = h W^T,  dh = dz W,  dW = dz^T h,  into buffers that are there already, of all tokens
at once; "ours products" are these of as many tokens at a time as ours. Memory is with gradients, in float32 tensors of
all logits.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from measure import Row, Settings, Sides, Work, columns_of, parser_of, run, table
from peers import ChunkedLoss
from torch import Tensor

NAMES = ('floor', 'ours products', 'plain', 'chunked', 'ours no grad', 'ours')
HEADS = {
    'products in chunks': 'ours products',
    'M': 'plain',
    'M chunked': 'chunked',
    'ours, no gradients': 'ours no grad',
    'ours': 'ours',
}
SIZES = {'vocab': 50257, 'dim': 256, 'seq': 2048, 'batch': 1}
TINY = {'vocab': 4000, 'dim': 8, 'seq': 256, 'batch': 1}


def products(hidden: Tensor, weight: Tensor, size: int) -> Work:
    """The matrix products of so many tokens at a time, into buffers that are there already."""
    h, w = hidden.detach(), weight.detach()
    buffer = h.new_empty(min(size, len(h)), len(w))
    to_h, to_w = torch.empty_like(h), torch.empty_like(w)

    def run() -> None:
        for start in range(0, len(h), size):
            x = h[start : start + size]
            z = torch.mm(x, w.t(), out=buffer[: len(x)])
            torch.mm(z, w, out=to_h[start : start + size])
            torch.mm(z.t(), x, out=to_w) if start == 0 else to_w.addmm_(z.t(), x)

    return run


def work(column: str, case: dict[str, Any], settings: Settings) -> Work:
    """One loss with its gradients."""
    given = {'device': settings.device, 'dtype': getattr(torch, settings.dtype)}
    tokens, dim, vocab = case['batch'] * case['seq'], case['dim'], case['vocab']
    hidden = torch.randn(tokens, dim, **given).requires_grad_()
    weight = (torch.randn(vocab, dim, **given) * dim**-0.5).requires_grad_()
    targets = torch.randint(vocab, (tokens,), device=settings.device)
    if column == 'floor':
        return products(hidden, weight, tokens)
    loss = {'plain': lambda h, w, t: F.cross_entropy(F.linear(h, w), t), 'chunked': ChunkedLoss.apply}.get(column)
    if loss is None:  # a column of ours
        from x_transformers.training.token_loss import linear_cross_entropy as loss, tokens_at_a_time

        if column == 'ours products':
            return products(hidden, weight, tokens_at_a_time(vocab, hidden))
        if column == 'ours no grad':
            return torch.no_grad()(lambda: loss(hidden, weight, targets))

    def trained() -> None:
        loss(hidden, weight, targets).backward()
        hidden.grad = weight.grad = None

    return trained


def parser() -> argparse.ArgumentParser:
    parser = parser_of(__doc__)
    for name, value in SIZES.items():
        parser.add_argument(f'--{name}', type=int, default=value)
    return parser


def rows(options: argparse.Namespace) -> list[Row]:
    case = TINY if options.tiny else {name: getattr(options, name) for name in SIZES}
    tokens = case['batch'] * case['seq']
    logits = (f'times the {tokens} x {case["vocab"]} logits', 4 * tokens * case['vocab'])
    what = f'vocab {case["vocab"]}, dim {case["dim"]}, {tokens} tokens'
    with Sides(__file__, columns_of(options, NAMES), options) as sides:
        return [
            sides.seconds(f'loss alone, {what}', case, base='floor'),
            sides.memory('the same: peak memory in logits tensors', case, among=NAMES[2:], unit=logits),
        ]


def show(rows: Sequence[Row]) -> str:
    return table(rows, HEADS, 'the loss: multiples of the floor')


if __name__ == '__main__':
    run(parser(), work, rows, show)
