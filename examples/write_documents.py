"""Document generation: a model of bytes writes JSON documents, each of which a parser must read.

python examples/write_documents.py
"""

from __future__ import annotations

import argparse
import json
import sys

from common import packages

with packages():
    import torch
    from common.toys import Score, fit, heads, run
    from torch import Tensor
    from torch.nn.utils.rnn import pad_sequence

    from x_transformers import AutoregressiveWrapper, Decoder, TransformerWrapper

NAMES, THINGS = ('anna', 'ben', 'carla', 'david', 'eve'), ('tea', 'rain', 'chess', 'maps', 'bread', 'jazz')
END, LONGEST = 0, 96  # a byte that no document has


def chosen(options: tuple[str, ...]) -> str:
    return options[torch.randint(0, len(options), ()).item()]


def document() -> dict:
    likes = [chosen(THINGS) for _ in range(torch.randint(1, 4, ()).item())]
    found = dict(name=chosen(NAMES), age=torch.randint(1, 100, ()).item(), likes=likes)
    return found | dict(friend=dict(name=chosen(NAMES))) if torch.rand(()) < 0.5 else found


def documents(count: int) -> tuple[Tensor, Tensor]:
    """Bytes (b n) of documents behind one that stands for their beginning, and how many (b)."""
    rows = [torch.tensor([END, *json.dumps(document()).encode(), END]) for _ in range(count)]
    return pad_sequence(rows, batch_first=True), torch.tensor([len(row) for row in rows])


def readable(text: bytes) -> bool:
    """Whether a text is a document as those learned from."""
    try:
        found = json.loads(text)
    except ValueError:
        return False
    if not isinstance(found, dict) or not {'name', 'age', 'likes'} <= set(found) <= {'name', 'age', 'likes', 'friend'}:
        return False
    likes = isinstance(found['likes'], list) and set(found['likes']) <= set(THINGS)
    return found['name'] in NAMES and isinstance(found['age'], int) and likes


def task(args: argparse.Namespace) -> list[Score]:
    stack = Decoder(**heads(64), depth=2, rotary_pos_emb=True)
    net = TransformerWrapper(num_tokens=128, max_seq_len=LONGEST, attn_layers=stack, use_abs_pos_emb=False)
    model = AutoregressiveWrapper(net)

    def loss() -> Tensor:
        rows, lens = documents(args.batch_size)
        return model(rows[:, : LONGEST + 1], lens=lens.clamp(max=LONGEST + 1))

    fit(model, loss, args)
    begin = torch.full((200, 1), END)
    made = model.generate(begin, LONGEST - 1, eos_token=END, temperature=0.7)
    texts = [bytes(row).split(b'\0')[0] for row in made.tolist()]
    return [Score('documents that can be read', sum(map(readable, texts)) / len(texts), 0.95)]


def main(argv: list[str] | None = None) -> int:
    """Run the script. Returns its exit code."""
    return run('write_documents.py', __doc__, task, argv, steps=700, batch=32, lr=0.003)


if __name__ == '__main__':
    sys.exit(main())
