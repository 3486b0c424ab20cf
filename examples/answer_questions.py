"""Question answering: where in a paragraph of keys and values is the value of the key that is asked for?

    python examples/answer_questions.py

An `Encoder` scores each word as the first and as the last of the answer; of all pairs in the right order the best is
the answer.
"""

from __future__ import annotations

import argparse
import sys

from common import packages

with packages():
    import torch
    from common.toys import PAD, Score, fit, heads, run
    from torch import Tensor
    from torch.nn.functional import cross_entropy
    from torch.nn.utils.rnn import pad_sequence

    from x_transformers import Encoder, TransformerWrapper

KEYS, VALUES = range(2, 22), range(22, 42)
STOP = 1  # ends what is said of a key


def question() -> tuple[list[int], tuple[int, int]]:
    """The key asked for, then a paragraph; the first and last word of the answer."""
    keys = torch.randperm(len(KEYS))[:5].tolist()
    asked = torch.randint(0, 5, ()).item()
    words, answer = [KEYS[keys[asked]], STOP], (0, 0)
    for at, key in enumerate(keys):
        value = [VALUES[one] for one in torch.randint(0, len(VALUES), (torch.randint(1, 4, ()).item(),)).tolist()]
        words += [KEYS[key]]
        if at == asked:
            answer = (len(words), len(words) + len(value) - 1)
        words += [*value, STOP]
    return words, answer


def questions(count: int) -> tuple[Tensor, Tensor]:
    """Words (b n), and the first and last of the answer (b 2)."""
    words, answers = zip(*(question() for _ in range(count)), strict=True)
    return pad_sequence([torch.tensor(row) for row in words], batch_first=True), torch.tensor(answers)


def scores(model: TransformerWrapper, ids: Tensor) -> Tensor:
    """How well each word begins and ends the answer (b 2 n); padding does neither."""
    real = ids != PAD
    return model(ids, mask=real).mT.masked_fill(~real.unsqueeze(1), -torch.inf)


def best(found: Tensor) -> Tensor:
    """The best pairs (b 2) of scores (b 2 n), the last word not before the first."""
    first, last = found.unbind(dim=1)
    both = first.unsqueeze(2) + last.unsqueeze(1)
    n = both.shape[1]
    both = both.masked_fill(torch.ones(n, n, dtype=torch.bool).tril(-1), -torch.inf)
    at = both.flatten(1).argmax(dim=1)
    return torch.stack((at // n, at % n), dim=1)


def task(args: argparse.Namespace) -> list[Score]:
    stack = Encoder(**heads(64), depth=3, rotary_pos_emb=True, ff_glu=True)
    model = TransformerWrapper(num_tokens=VALUES[-1] + 1, max_seq_len=64, attn_layers=stack, logits_dim=2)

    def loss() -> Tensor:
        ids, answers = questions(args.batch_size)
        return cross_entropy(scores(model, ids).flatten(0, 1), answers.flatten())

    fit(model, loss, args)
    ids, answers = questions(300)
    with torch.no_grad():
        made = best(scores(model, ids))
    right = (made == answers).all(dim=1).float().mean().item()
    ordered = (made[:, 1] >= made[:, 0]).float().mean().item()
    return [
        Score('answers that are right', right, 0.95),
        Score('answers that end behind their first word', ordered, 1.0),
    ]


def main(argv: list[str] | None = None) -> int:
    """Run the script. Returns its exit code."""
    return run('answer_questions.py', __doc__, task, argv, steps=1200, lr=3e-3)


if __name__ == '__main__':
    sys.exit(main())
