"""Time series: a `ContinuousTransformerWrapper` foretells mixtures of waves, step by step.

    python examples/forecast.py

The next value is to be foretold with at most a quarter of the error of "as it is now".
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

    from x_transformers import ContinuousAutoregressiveWrapper, ContinuousTransformerWrapper, Decoder

LENGTH = 64


def series(count: int, length: int = LENGTH) -> Tensor:
    """Sums (b n 1) of two waves of any length, phase and height, and a little noise."""
    times = torch.arange(length).float()
    periods, phases = 8 + 24 * torch.rand(count, 2, 1), 2 * math.pi * torch.rand(count, 2, 1)
    waves = (0.5 + torch.rand(count, 2, 1)) * torch.sin(2 * math.pi * times / periods + phases)
    return (waves.sum(dim=1) + 0.01 * torch.randn(count, length)).unsqueeze(-1)


def task(args: argparse.Namespace) -> list[Score]:
    stack = Decoder(**heads(64), depth=2, rotary_pos_emb=True)
    net = ContinuousTransformerWrapper(dim_in=1, dim_out=1, max_seq_len=2 * LENGTH, attn_layers=stack)
    model = ContinuousAutoregressiveWrapper(net)
    fit(model, lambda: model(series(args.batch_size)), args)
    x = series(300)
    with torch.no_grad():
        error = (net(x[:, :-1]) - x[:, 1:])[:, 8:].square().mean()
    as_now = (x[:, :-1] - x[:, 1:])[:, 8:].square().mean()
    rolled = model.generate(x[:, : LENGTH // 2], LENGTH)
    return [
        Score('error beside that of "as it is now"', (error / as_now).item(), 0.25, at_most=True),
        Score('numbers foretold from numbers foretold are finite', float(rolled.isfinite().all()), 1.0),
    ]


def main(argv: list[str] | None = None) -> int:
    """Run the script. Returns its exit code."""
    return run('forecast.py', __doc__, task, argv, steps=500)


if __name__ == '__main__':
    sys.exit(main())
