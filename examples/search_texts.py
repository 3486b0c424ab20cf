"""Search: an `Encoder` makes vectors of texts, near to one another where two say the same in other words.

    python examples/search_texts.py

A vector is the mean over the tokens, of length 1; in a batch each text is to be found by its paraphrase among all
others (contrastive learning, arXiv:1807.03748).
"""

from __future__ import annotations

import argparse
import math
import sys

from common import packages

with packages():
    import torch
    from common.toys import Score, fit, heads, run
    from torch import Tensor
    from torch.nn.functional import cross_entropy, normalize

    from x_transformers import Encoder, TransformerWrapper

THINGS, WAYS, LENGTH = 12, 4, 6
TEMPERATURE = 0.1


def paraphrases(count: int) -> tuple[Tensor, Tensor]:
    """Twice the same things (b n), each in one of its words, in any order; no two rows name the same things."""
    every = torch.combinations(torch.arange(THINGS), LENGTH)
    things = every[torch.randperm(len(every))[:count]]
    texts = []
    for _ in range(2):
        words = things * WAYS + torch.randint(0, WAYS, things.shape)
        texts.append(words.gather(1, torch.rand(things.shape).argsort(dim=1)))
    return texts[0], texts[1]


def contrastive_loss(ours: Tensor, theirs: Tensor) -> Tensor:
    """How badly each row (b d) finds its own among the others, in both directions."""
    near, own = ours @ theirs.T / TEMPERATURE, torch.arange(len(ours))
    return (cross_entropy(near, own) + cross_entropy(near.T, own)) / 2


def task(args: argparse.Namespace) -> list[Score]:
    stack = Encoder(**heads(64), depth=2)
    net = TransformerWrapper(num_tokens=THINGS * WAYS, max_seq_len=LENGTH, attn_layers=stack)

    def vectors(ids: Tensor) -> Tensor:
        return normalize(net(ids, return_embeddings=True).mean(dim=1), dim=-1)

    def loss() -> Tensor:
        ours, theirs = paraphrases(args.batch_size)
        return contrastive_loss(vectors(ours), vectors(theirs))

    fit(net, loss, args)
    asked, known = paraphrases(300)
    with torch.no_grad():
        found = (vectors(asked) @ vectors(known).T).argmax(dim=1)
        same = vectors(asked[:1]).expand(10, -1)
        by_chance = contrastive_loss(same, same).item()
    return [
        Score('texts found first of 300', (found == torch.arange(300)).float().mean().item(), 0.95),
        Score('the loss of ten equal rows is log 10', abs(by_chance - math.log(10)), 1e-5, at_most=True),
    ]


def main(argv: list[str] | None = None) -> int:
    """Run the script. Returns its exit code."""
    return run('search_texts.py', __doc__, task, argv, steps=350)


if __name__ == '__main__':
    sys.exit(main())
