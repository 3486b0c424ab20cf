"""Classifying sentences by their [CLS] token: sentiment, acceptability, and whether two say the same.

    python examples/judge_sentences.py

Sentiment: more good words than bad ones, where a negation turns the next word around. Acceptability: a verb agrees in
number with its subject, whatever noun stands between them. Paraphrase: both sentences name the same things, in other
words and another order; the answer is the mean of those to both orders of the pair, and so does not depend on it.
"""

from __future__ import annotations

import argparse
import sys

from common import packages

with packages():
    import torch
    from common.toys import Score, fit, heads, run
    from torch import Tensor, nn
    from torch.nn.functional import cross_entropy

    from x_transformers import Encoder, TransformerWrapper

LENGTH = 9
BETWEEN, NOT, GOOD, BAD = 1, 2, range(3, 9), range(9, 15)
SINGULAR, PLURAL, IS, ARE = range(15, 23), range(23, 31), 31, 32
THINGS, WAYS = 6, 3  # words for a thing
FIRST_THING, VOCABULARY = 33, 33 + THINGS * WAYS


def sentiments(count: int) -> tuple[Tensor, Tensor]:
    """Sentences (b n) and whether they are friendly (b)."""
    kind = torch.randint(0, 3, (count, LENGTH))  # good, bad, negation
    words = torch.where(kind == 0, GOOD[0], BAD[0]) + torch.randint(0, len(GOOD), kind.shape)
    negated = torch.cat((torch.zeros(count, 1, dtype=torch.bool), kind[:, :-1] == 2), dim=1)
    sign = torch.where(kind == 0, 1, -1) * torch.where(negated, -1, 1) * (kind != 2)
    return torch.where(kind == 2, NOT, words), (sign.sum(dim=1) > 0).long()


def agreements(count: int) -> tuple[Tensor, Tensor]:
    """A subject, other nouns, and a verb (b n), and whether its number is that of the subject."""
    plural = torch.rand(count, LENGTH - 1) < 0.5
    nouns = torch.where(plural, PLURAL[0], SINGULAR[0]) + torch.randint(0, len(PLURAL), plural.shape)
    verb = torch.randint(0, 2, (count, 1))
    return torch.cat((nouns, torch.where(verb == 1, ARE, IS)), dim=1), (verb[:, 0] == plural[:, 0].long()).long()


def in_words(things: Tensor) -> Tensor:
    """Any of the words for each thing, in any order."""
    order = torch.rand(things.shape).argsort(dim=1)
    words = FIRST_THING + things * WAYS + torch.randint(0, WAYS, things.shape)
    return words.gather(1, order)


def pairs(count: int) -> tuple[Tensor, Tensor]:
    """Two sentences with a sign between them (b n), and whether they say the same; if not, one thing is another."""
    things = torch.rand(count, THINGS).argsort(dim=1)
    ours, same = things[:, :4], torch.rand(count) < 0.5
    theirs = torch.where(same.unsqueeze(1), ours, torch.cat((ours[:, :3], things[:, 4:5]), dim=1))
    between = torch.full((count, 1), BETWEEN)
    return torch.cat((in_words(ours), between, in_words(theirs)), dim=1), same.long()


def swapped(rows: Tensor) -> Tensor:
    """The second sentence first."""
    return torch.cat((rows[:, 5:], rows[:, 4:5], rows[:, :4]), dim=1)


def both_ways(model: nn.Module, rows: Tensor) -> Tensor:
    """Logits that do not depend on the order of a pair."""
    return (model(rows) + model(swapped(rows))) / 2


# what is made, whether neighbours matter, and how fast and how long to learn
TASKS = (
    ('sentiment', sentiments, True, 2, 0.8),
    ('acceptability', agreements, False, 1, 0.25),
    ('paraphrase', pairs, False, 1, 1),
)


def task(args: argparse.Namespace) -> list[Score]:
    scores = []
    for name, draw, rotary, lr, share in TASKS:
        stack = Encoder(**heads(64), depth=2, rotary_pos_emb=rotary, ff_glu=True)
        net = TransformerWrapper(
            num_tokens=VOCABULARY, max_seq_len=LENGTH, attn_layers=stack, use_cls_token=True, logits_dim=2
        )

        def answers(rows: Tensor, net: nn.Module = net, name: str = name) -> Tensor:
            return both_ways(net, rows) if name == 'paraphrase' else net(rows)

        def loss(draw=draw, answers=answers) -> Tensor:
            rows, labels = draw(args.batch_size)
            return cross_entropy(answers(rows), labels)

        part = argparse.Namespace(steps=max(round(args.steps * share), 1), lr=args.lr * lr)
        fit(net, loss, part)
        rows, labels = draw(1000)
        with torch.no_grad():
            right = (answers(rows).argmax(dim=-1) == labels).float().mean().item()
            if name == 'paraphrase':
                moved = (answers(rows) - answers(swapped(rows))).abs().max().item()
                scores.append(Score('what the order of a pair changes', moved, 1e-6, at_most=True))
        scores.append(Score(f'{name}, right', right, 0.95))
    return scores


def main(argv: list[str] | None = None) -> int:
    """Run the script. Returns its exit code."""
    return run('judge_sentences.py', __doc__, task, argv, steps=1500, lr=1e-3)


if __name__ == '__main__':
    sys.exit(main())
