"""Speech to text: sounds of one to three tones become letters, by a `SpeechEncoder` and a `Decoder` that listens to it.

python examples/transcribe_tones.py
"""

from __future__ import annotations

import argparse
import math
import sys

from common import packages

with packages():
    import torch
    from common.toys import END, START, Score, fit, heads, run
    from torch import Tensor

    from x_transformers import (
        AutoregressiveWrapper,
        Decoder,
        EncoderDecoder,
        LogMelSpectrogram,
        SpeechEncoder,
        TransformerWrapper,
    )

RATE, TONES, PITCHES = 16_000, 3, 4
FIRST_LETTER = START + 1


def sounds(count: int) -> tuple[Tensor, Tensor]:
    """Waves (b 9600) of up to three tones, a fifth of a second each, and their letters (b n), the end behind them."""
    pitches, tones = torch.randint(0, PITCHES, (count, TONES)), torch.randint(1, TONES + 1, (count, 1))
    silent = torch.arange(TONES) >= tones
    times = torch.arange(RATE // 5) / RATE
    waves = 0.5 * torch.sin(2 * math.pi * 400.0 * 2.0 ** pitches.unsqueeze(-1) * times)
    waves = waves.masked_fill(silent.unsqueeze(-1), 0.0).flatten(1)
    letters = (FIRST_LETTER + pitches).masked_fill(silent, END)
    ends = torch.full((count, 1), END)
    return waves + 0.01 * torch.randn(waves.shape), torch.cat((torch.full_like(ends, START), letters, ends), dim=1)


def task(args: argparse.Namespace) -> list[Score]:
    front = LogMelSpectrogram(seconds=TONES / 5, n_mels=20)
    stack = Decoder(**heads(32, 2), depth=1, cross_attend=True)
    net = TransformerWrapper(num_tokens=FIRST_LETTER + PITCHES, max_seq_len=TONES + 2, attn_layers=stack)
    listener = SpeechEncoder(32, 1, 2, n_mels=20, max_positions=30)
    model = EncoderDecoder(listener, AutoregressiveWrapper(net))

    def loss() -> Tensor:
        waves, letters = sounds(args.batch_size)
        return model(front(waves), letters)

    fit(model, loss, args)
    waves, letters = sounds(300)
    made = model.generate(front(waves), letters[:, :1], TONES + 1, temperature=0.0)
    return [Score('letters that are right', (made == letters[:, 1:]).float().mean().item(), 0.95)]


def main(argv: list[str] | None = None) -> int:
    """Run the script. Returns its exit code."""
    return run('transcribe_tones.py', __doc__, task, argv, steps=300, batch=32, lr=3e-3)


if __name__ == '__main__':
    sys.exit(main())
