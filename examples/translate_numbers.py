"""Machine translation: numbers in digits become English words, and words become digits, by one `XTransformer`.

    python examples/translate_numbers.py

The first token says into which language. Of the numbers up to 999 a fifth is not learned from, but asked for at the
end; what is most probable token by token is what a beam of one finds.
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

ONES = (
    'zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen '
    'eighteen nineteen'
).split()
TENS = 'twenty thirty forty fifty sixty seventy eighty ninety'.split()
WORDS = Words(['to words', 'to digits', *'0123456789', *ONES, *TENS, 'hundred'])


def in_words(number: int) -> list[str]:
    if number >= 100:
        return [ONES[number // 100], 'hundred', *(in_words(number % 100) if number % 100 else [])]
    if number >= 20:
        return [TENS[number // 10 - 2], *([ONES[number % 10]] if number % 10 else [])]
    return [ONES[number]]


def pairs(numbers: Tensor) -> tuple[Tensor, Tensor]:
    """Both languages of numbers: what to translate, and its translation (2b n)."""
    digits, words = [list(str(number)) for number in numbers.tolist()], list(map(in_words, numbers.tolist()))
    asked = [['to words', *text] for text in digits] + [['to digits', *text] for text in words]
    return WORDS.read(asked), WORDS.read([*words, *digits], end=True)


def task(args: argparse.Namespace) -> list[Score]:
    sizes = dict(num_tokens=len(WORDS), depth=2, heads=4, attn_dim_head=16, max_seq_len=8)
    flags = {f'{side}_{name}': value for side in ('enc', 'dec') for name, value in sizes.items()}
    model = XTransformer(dim=64, **flags, pad_value=PAD, tie_token_emb=True)
    new, known = torch.randperm(1000).tensor_split((200,))

    def loss() -> Tensor:
        src, tgt = pairs(known[torch.randint(0, len(known), (args.batch_size,))])
        start = torch.full((len(tgt), 1), START)
        return model(src, torch.cat((start, tgt), dim=1), mask=src != PAD, tgt_mask=torch.cat((start, tgt), 1) != PAD)

    fit(model, loss, args)
    src, tgt = pairs(new)
    start, options = torch.full((len(src), 1), START), dict(eos_token=END, mask=src != PAD)
    greedy = model.generate(src, start, 7, temperature=0.0, **options)
    context = model.encoder(src, mask=src != PAD, return_embeddings=True)
    beam = model.decoder.beam_search(start, 7, beams=1, eos_token=END, context=context, context_mask=src != PAD)
    right = same_rows(greedy, tgt).float()
    return [
        Score('numbers translated into words', right[: len(new)].mean().item(), 0.95),
        Score('words translated into numbers', right[len(new) :].mean().item(), 0.95),
        Score('a beam of one finds the same', same_rows(beam, greedy).float().mean().item(), 1.0),
    ]


def main(argv: list[str] | None = None) -> int:
    """Run the script. Returns its exit code."""
    return run('translate_numbers.py', __doc__, task, argv, steps=600)


if __name__ == '__main__':
    sys.exit(main())
