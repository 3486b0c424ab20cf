"""Code generation: a `Decoder` writes programs of three kinds of brackets, each of which must close what it opens.

python examples/write_code.py
"""

from __future__ import annotations

import argparse
import sys

from common import packages

with packages():
    import torch
    from common.toys import END, START, Score, Words, fit, heads, run
    from torch import Tensor

    from x_transformers import AutoregressiveWrapper, Decoder, TransformerWrapper

PAIRS = {'(': ')', '[': ']', '{': '}'}
WORDS = Words([*PAIRS, *PAIRS.values()])
LENGTH, DEEPEST = 24, 5


def program() -> str:
    """Brackets of an even length, up to so deep."""
    text, left = '', []
    length = 2 * torch.randint(2, LENGTH // 2 + 1, ()).item()
    while len(text) < length:
        must_close = len(left) == min(DEEPEST, length - len(text))
        if left and (must_close or torch.rand(()) < 0.5):
            text += PAIRS[left.pop()]
        else:
            left.append('([{'[torch.randint(0, 3, ()).item()])
            text += left[-1]
    return text


def balanced(text: list[str]) -> bool:
    left: list[str] = []
    for bracket in text:
        if bracket in PAIRS:
            left.append(PAIRS[bracket])
        elif not left or left.pop() != bracket:
            return False
    return not left


def task(args: argparse.Namespace) -> list[Score]:
    stack = Decoder(**heads(64), depth=3, rotary_pos_emb=True)
    net = TransformerWrapper(num_tokens=len(WORDS), max_seq_len=LENGTH + 1, attn_layers=stack)
    model = AutoregressiveWrapper(net)
    assert all(balanced(list(program())) for _ in range(100))

    def loss() -> Tensor:
        rows = WORDS.read([program() for _ in range(args.batch_size)], end=True)
        lens = (rows != 0).sum(dim=1) + 1
        return model(torch.cat((torch.full((len(rows), 1), START), rows), dim=1), lens=lens)

    fit(model, loss, args)
    made = model.generate(torch.full((300, 1), START), LENGTH + 1, eos_token=END)
    texts = [WORDS.written(row) for row in made]
    ended = [END in row for row in made.tolist()]
    right = [text != [] and end and balanced(text) for text, end in zip(texts, ended, strict=True)]
    return [Score('programs whose brackets close', sum(right) / len(right), 0.95)]


def main(argv: list[str] | None = None) -> int:
    """Run the script. Returns its exit code."""
    return run('write_code.py', __doc__, task, argv, steps=1500)


if __name__ == '__main__':
    sys.exit(main())
