"""Reading comprehension and repair of text: what was cut out of a statement stands in another one.

    python examples/repair_text.py

A text says everything twice, in another order of words. Spans of it are cut out as in T5, and a model of
`T5PretrainWrapper` learns to write them.
"""

from __future__ import annotations

import argparse
import sys

from common import packages

with packages():
    import torch
    from common.toys import END, PAD, START, Score, fit, run, same_rows
    from torch import Tensor

    from x_transformers import SpanCorruption, T5PretrainWrapper, XTransformer

WORDS, SENTINELS = range(4, 34), 10
BETWEEN, VOCABULARY = 3, WORDS[-1] + 1 + SENTINELS
LENGTH = 8  # words of a statement


def texts(count: int) -> Tensor:
    """A statement (b n) and, behind a sign, the same again with its halves the other way round."""
    said = torch.rand(count, len(WORDS)).argsort(dim=1)[:, :LENGTH] + WORDS[0]
    again = said.roll(LENGTH // 2, dims=1)
    return torch.cat((said, torch.full((count, 1), BETWEEN), again), dim=1)


def known(asked: Tensor, answers: Tensor) -> Tensor:
    """Of which texts (b) every word that was cut out still stands somewhere."""
    cut = (answers >= WORDS[0]) & (answers <= WORDS[-1])
    return (~cut | (answers.unsqueeze(2) == asked.unsqueeze(1)).any(dim=2)).all(dim=1)


def task(args: argparse.Namespace) -> list[Score]:
    sizes = dict(num_tokens=VOCABULARY, depth=2, heads=4, attn_dim_head=16, max_seq_len=32, rotary_pos_emb=True)
    flags = {f'{side}_{name}': value for side in ('enc', 'dec') for name, value in sizes.items()}
    net = XTransformer(dim=64, **flags, pad_value=PAD, tie_token_emb=True)
    spans = dict(noise_density=0.2, mean_span=2.0, num_sentinels=SENTINELS)
    model = T5PretrainWrapper(net, SpanCorruption(VOCABULARY - 1, END, **spans), start_id=START)
    fit(model, lambda: model(texts(args.batch_size)), args)
    asked, answers = model.corruption(texts(400))
    told = known(asked, answers)
    asked, answers = asked[told], answers[told]
    start = torch.full((len(asked), 1), START)
    made = net.generate(asked, start, answers.shape[1], temperature=0.0, eos_token=END, mask=asked != PAD)
    return [Score('texts of which all cut words are right', same_rows(made, answers).float().mean().item(), 0.9)]


def main(argv: list[str] | None = None) -> int:
    """Run the script. Returns its exit code."""
    return run('repair_text.py', __doc__, task, argv, steps=1500)


if __name__ == '__main__':
    sys.exit(main())
