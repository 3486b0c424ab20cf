"""Named entity recognition: places of one or two words from a list, and persons by the word before them.

    python examples/find_names.py

A place is one that the list has; any unknown word behind a title is a person, and otherwise nothing. An `Encoder` with
an answer for each word: outside, first or further word of a place or a person. The measure is F1 of whole names.
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

OUTSIDE, PLACE, PERSON = 0, 1, 3  # the next number is that of a further word
FILLERS, TITLES, UNKNOWN, FIRST, SECOND = range(1, 21), range(21, 24), range(24, 54), range(54, 64), range(64, 74)
PLACES = [(one,) for one in FIRST[:5]] + [(one, SECOND[at]) for at, one in enumerate(FIRST)]  # 'york', 'new york'


def drawn(options: range | list) -> int | tuple[int, ...]:
    return options[torch.randint(0, len(options), ()).item()]


def sentence() -> tuple[list[int], list[int]]:
    """Words and their answers."""
    words, tags = [], []
    for _ in range(torch.randint(3, 8, ()).item()):
        kind = torch.randint(0, 5, ()).item()
        if kind == 0:
            place = drawn(PLACES)
            words += place
            tags += [PLACE, PLACE + 1][: len(place)]
        elif kind == 1:
            length = torch.randint(1, 3, ()).item()
            words += [drawn(TITLES), *(drawn(UNKNOWN) for _ in range(length))]
            tags += [OUTSIDE, PERSON, PERSON + 1][: 1 + length]
        elif kind == 2:  # a stranger without a title, or half a place
            words += [drawn(FILLERS), drawn(UNKNOWN) if torch.rand(()) < 0.5 else drawn(SECOND)]
            tags += [OUTSIDE, OUTSIDE]
        words += [drawn(FILLERS)]
        tags += [OUTSIDE]
    return words, tags


def sentences(count: int) -> tuple[Tensor, Tensor]:
    """Words and answers (b n); those of padding are -100."""
    words, tags = zip(*(sentence() for _ in range(count)), strict=True)
    ids = pad_sequence([torch.tensor(row) for row in words], batch_first=True, padding_value=PAD)
    return ids, pad_sequence([torch.tensor(row) for row in tags], batch_first=True, padding_value=-100)


def spans(tags: list[int]) -> set[tuple[int, int, int]]:
    """(kind, first word, word behind the last) of each name; -100 is padding."""
    found, begin = set(), None
    for at, tag in enumerate([*tags, OUTSIDE]):
        if begin is not None and tag != tags[begin] + 1:
            found.add((tags[begin], begin, at))
            begin = None
        if tag in (PLACE, PERSON):
            begin = at
    return found


def f1(made: Tensor, tags: Tensor) -> float:
    """Of whole names, whatever the answers at padding are."""
    made = made.masked_fill(tags < 0, OUTSIDE)
    pairs = [(spans(ours), spans(true)) for ours, true in zip(made.tolist(), tags.tolist(), strict=True)]
    both = sum(len(ours & true) for ours, true in pairs)
    return 2 * both / max(sum(len(ours) + len(true) for ours, true in pairs), 1)


def task(args: argparse.Namespace) -> list[Score]:
    stack = Encoder(**heads(64), depth=2, rotary_pos_emb=True)
    model = TransformerWrapper(num_tokens=SECOND[-1] + 1, max_seq_len=64, attn_layers=stack, logits_dim=5)

    def loss() -> Tensor:
        ids, tags = sentences(args.batch_size)
        return cross_entropy(model(ids, mask=ids != PAD).transpose(1, 2), tags)

    fit(model, loss, args)
    ids, tags = sentences(200)
    with torch.no_grad():
        made = model(ids, mask=ids != PAD).argmax(dim=-1)
    wrong_in_padding = torch.where(tags < 0, PLACE, made)
    same = float(f1(wrong_in_padding, tags) == f1(made, tags))
    return [Score('F1 of names', f1(made, tags), 0.95), Score('answers at padding do not count', same, 1.0)]


def main(argv: list[str] | None = None) -> int:
    """Run the script. Returns its exit code."""
    return run('find_names.py', __doc__, task, argv, steps=500)


if __name__ == '__main__':
    sys.exit(main())
