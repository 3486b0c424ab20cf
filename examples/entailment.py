"""Textual entailment: does a premise say all that a hypothesis says? By decomposable attention, and by an `Encoder`.

    python examples/entailment.py

A hypothesis follows if all of its words are among those of the premise. The first model (arXiv:1606.01933) compares
word by word and does not know their order; the second reads both in one row.
"""

from __future__ import annotations

import argparse
import sys

from common import packages

with packages():
    import torch
    from common.toys import Score, fit, heads, run
    from predecessors import DecomposableAttention
    from torch import Tensor, nn
    from torch.nn.functional import cross_entropy

    from x_transformers import Encoder, TransformerWrapper

WORDS, PREMISE, HYPOTHESIS = 20, 8, 3


def pairs(count: int) -> tuple[Tensor, Tensor, Tensor]:
    """Premises (b n), hypotheses (b m) and whether they follow; of those that do not, one word is new."""
    words = torch.rand(count, WORDS).argsort(dim=1)
    premise, other = words[:, :PREMISE], words[:, PREMISE : PREMISE + 1]
    said = premise.gather(1, torch.rand(count, PREMISE).argsort(dim=1)[:, :HYPOTHESIS])
    follows = torch.rand(count) < 0.5
    hypothesis = torch.where(follows.unsqueeze(1), said, torch.cat((said[:, 1:], other), dim=1))
    order = torch.rand(count, HYPOTHESIS).argsort(dim=1)
    return premise, hypothesis.gather(1, order), follows.long()


class ByWords(nn.Module):
    def __init__(self, dim: int) -> None:
        super().__init__()
        self.embed, self.compare = nn.Embedding(WORDS, dim), DecomposableAttention(dim, dim, 2)

    def forward(self, premise: Tensor, hypothesis: Tensor) -> Tensor:
        return self.compare(self.embed(premise), self.embed(hypothesis))


class InOneRow(nn.Module):
    def __init__(self, dim: int) -> None:
        super().__init__()
        stack = Encoder(**heads(dim), depth=2, ff_glu=True)
        sizes = dict(num_tokens=2 * WORDS, max_seq_len=PREMISE + HYPOTHESIS)
        answer = dict(use_cls_token=True, logits_dim=2)
        self.net = TransformerWrapper(**sizes, attn_layers=stack, use_abs_pos_emb=False, **answer)

    def forward(self, premise: Tensor, hypothesis: Tensor) -> Tensor:
        return self.net(torch.cat((premise, WORDS + hypothesis), dim=1))


def task(args: argparse.Namespace) -> list[Score]:
    scores = []
    for name, model in (('decomposable attention', ByWords(64)), ('encoder', InOneRow(64))):

        def loss(model: nn.Module = model) -> Tensor:
            premise, hypothesis, follows = pairs(args.batch_size)
            return cross_entropy(model(premise, hypothesis), follows)

        fit(model, loss, args)
        premise, hypothesis, follows = pairs(1000)
        with torch.no_grad():
            right = (model(premise, hypothesis).argmax(dim=-1) == follows).float().mean().item()
        scores.append(Score(f'{name}, right', right, 0.95))
    return scores


def main(argv: list[str] | None = None) -> int:
    """Run the script. Returns its exit code."""
    return run('entailment.py', __doc__, task, argv, steps=2000)


if __name__ == '__main__':
    sys.exit(main())
