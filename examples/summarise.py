"""Summarisation: of a text with marked words, the marked ones in their order, by an `XTransformer`.

python examples/summarise.py
"""

from __future__ import annotations

import argparse
import sys

from common import packages

with packages():
    import torch
    from common.toys import END, PAD, START, Score, Words, fit, run, same_rows
    from torch import Tensor

    from x_transformers import XTransformer

LETTERS, LONGEST = 'abcdefghijklmnop', 24
WORDS = Words([*LETTERS, *LETTERS.upper()])  # capitals are marked


def texts(count: int) -> tuple[Tensor, Tensor]:
    """Texts (b n) of 12 to 24 words, of which a quarter is marked, and their summaries."""
    long, short = [], []
    for length in torch.randint(12, LONGEST + 1, (count,)).tolist():
        letters = [LETTERS[at] for at in torch.randint(0, len(LETTERS), (length,))]
        marked = torch.rand(length) < 0.25
        text = [letter.upper() if mark else letter for letter, mark in zip(letters, marked, strict=True)]
        long.append(text)
        short.append([letter for letter in text if letter.isupper()])
    return WORDS.read(long), WORDS.read(short, end=True)


def task(args: argparse.Namespace) -> list[Score]:
    sizes = dict(
        num_tokens=len(WORDS), depth=2, heads=4, attn_dim_head=16, max_seq_len=LONGEST + 1, rotary_pos_emb=True
    )
    flags = {f'{side}_{name}': value for side in ('enc', 'dec') for name, value in sizes.items()}
    model = XTransformer(dim=64, **flags, pad_value=PAD, tie_token_emb=True)

    def loss() -> Tensor:
        src, tgt = texts(args.batch_size)
        tgt = torch.cat((torch.full((len(tgt), 1), START), tgt), dim=1)
        return model(src, tgt, mask=src != PAD, tgt_mask=tgt != PAD)

    fit(model, loss, args)
    src, tgt = texts(300)
    start = torch.full((len(src), 1), START)
    made = model.generate(src, start, LONGEST, temperature=0.0, eos_token=END, mask=src != PAD)
    return [Score('summaries that are right', same_rows(made, tgt).float().mean().item(), 0.95)]


def main(argv: list[str] | None = None) -> int:
    """Run the script. Returns its exit code."""
    return run('summarise.py', __doc__, task, argv, steps=1200)


if __name__ == '__main__':
    sys.exit(main())
