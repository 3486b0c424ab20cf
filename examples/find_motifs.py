"""Biological sequences: what was hidden of a motif in a strand of DNA is told from the rest of it.

    python examples/find_motifs.py

Strands of four letters, by chance but for a few motifs of eight letters at any place. A masked language model
(`MLMWrapper`) learns from hidden letters; asked for one of a motif it must know it.
"""

from __future__ import annotations

import argparse
import sys

from common import packages

with packages():
    import torch
    from common.toys import Score, fit, heads, run
    from torch import Tensor

    from x_transformers import Encoder, MLMWrapper, TransformerWrapper

HIDDEN, LETTERS, LENGTH = 4, 'ACGT', 48
MOTIFS = torch.tensor([[LETTERS.index(letter) for letter in motif] for motif in ('TATAAAGG', 'CACGTGCC', 'GATTACAA')])


def strands(count: int) -> tuple[Tensor, Tensor]:
    """Strands (b n), and which letters are of motifs (b n): one in each third, if any."""
    third, width = LENGTH // len(MOTIFS), MOTIFS.shape[1]
    letters, planted = torch.randint(0, len(LETTERS), (count, LENGTH)), torch.zeros(count, LENGTH, dtype=torch.bool)
    for begin in range(0, LENGTH, third):
        at = begin + torch.randint(0, third - width + 1, (count, 1)) + torch.arange(width)
        there = (torch.rand(count, 1) < 0.7).expand(-1, width)
        motif = MOTIFS[torch.randint(0, len(MOTIFS), (count,))]
        letters.scatter_(1, at, torch.where(there, motif, letters.gather(1, at)))
        planted.scatter_(1, at, there)
    return letters, planted


def task(args: argparse.Namespace) -> list[Score]:
    stack = Encoder(**heads(64), depth=3, rotary_pos_emb=True)
    net = TransformerWrapper(num_tokens=len(LETTERS) + 1, max_seq_len=LENGTH, attn_layers=stack)
    model = MLMWrapper(net, mask_token_id=HIDDEN, pad_token_id=None)
    fit(model, lambda: model(strands(args.batch_size)[0]), args)
    letters, planted = strands(600)
    rank = torch.rand(letters.shape).masked_fill(~planted, 2.0)
    one = rank.argmin(dim=1, keepdim=True)  # of a motif, where there is one
    hidden = torch.zeros_like(planted).scatter(1, one, True) & planted
    with torch.no_grad():
        made = net(letters.masked_fill(hidden, HIDDEN))[..., : len(LETTERS)].argmax(dim=-1)
    return [Score('hidden letters of motifs that are right', (made == letters)[hidden].float().mean().item(), 0.9)]


def main(argv: list[str] | None = None) -> int:
    """Run the script. Returns its exit code."""
    return run('find_motifs.py', __doc__, task, argv, steps=800, lr=3e-3)


if __name__ == '__main__':
    sys.exit(main())
