"""Following instructions: a `Decoder` is asked to copy, reverse, double or sort letters, and learns from answers alone.

python examples/follow_instructions.py
"""

from __future__ import annotations

import argparse
import sys

from common import packages

with packages():
    import torch
    from common.toys import END, PAD, Score, Words, fit, heads, run, same_rows
    from torch import Tensor
    from torch.nn.functional import cross_entropy
    from torch.nn.utils.rnn import pad_sequence

    from x_transformers import AutoregressiveWrapper, Decoder, TransformerWrapper

LETTERS, LONGEST = 'abcdefgh', 5
ASKED = {'copy': lambda text: text, 'reverse': lambda text: text[::-1], 'double': lambda text: text * 2, 'sort': sorted}
WORDS = Words([*ASKED, ':', *LETTERS])
NOTHING = -100  # the label of what is not to be learned


def requests(count: int) -> list[tuple[list[str], list[str]]]:
    """Requests and their answers."""
    found = []
    for _ in range(count):
        kind = list(ASKED)[torch.randint(0, len(ASKED), ()).item()]
        length = torch.randint(2, LONGEST + 1, ()).item()
        text = [LETTERS[at] for at in torch.randint(0, len(LETTERS), (length,))]
        found.append(([kind, ':', *text, ':'], list(ASKED[kind](text))))
    return found


def rows_and_labels(pairs: list[tuple[list[str], list[str]]]) -> tuple[Tensor, Tensor]:
    """Ids (b n) of requests and answers, and what is to be learned of each."""
    rows = WORDS.read([asked + answer for asked, answer in pairs], end=True)
    starts = torch.tensor([len(asked) for asked, _ in pairs])
    learned = (torch.arange(rows.shape[1]) >= starts.unsqueeze(1)) & (rows != PAD)
    return rows, rows.masked_fill(~learned, NOTHING)


def task(args: argparse.Namespace) -> list[Score]:
    stack = Decoder(**heads(64), depth=3, rotary_pos_emb=True)
    net = TransformerWrapper(num_tokens=len(WORDS), max_seq_len=24, attn_layers=stack)
    model = AutoregressiveWrapper(net, ignore_index=NOTHING)

    def loss() -> Tensor:
        rows, labels = rows_and_labels(requests(args.batch_size))
        return model(rows, labels=labels, lens=(rows != PAD).sum(dim=1))

    fit(model, loss, args)
    pairs = requests(300)
    asked, answers = [request for request, _ in pairs], WORDS.read([answer for _, answer in pairs], end=True)
    prompts, lens = WORDS.read(asked), torch.tensor(list(map(len, asked)))
    made = model.generate(prompts, answers.shape[1], temperature=0.0, eos_token=END, prompt_lens=lens)
    with torch.no_grad():
        rows, labels = rows_and_labels(pairs[:20])
        real = pad_sequence([torch.ones(n, dtype=torch.bool) for n in (rows != PAD).sum(dim=1)], batch_first=True)
        by_hand = cross_entropy(net(rows[:, :-1], mask=real[:, :-1]).transpose(1, 2), labels[:, 1:])
        apart = (model(rows, labels=labels, lens=real.sum(dim=1)) - by_hand).abs().item()
    return [
        Score('answers that are right', same_rows(made, answers).float().mean().item(), 0.95),
        Score('the loss is that of the answers', apart, 1e-5, at_most=True),
    ]


def main(argv: list[str] | None = None) -> int:
    """Run the script. Returns its exit code."""
    return run('follow_instructions.py', __doc__, task, argv, steps=1500)


if __name__ == '__main__':
    sys.exit(main())
