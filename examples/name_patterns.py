"""Images and words: a frozen language model learns to name what an image shows, through a projector alone.

    python examples/name_patterns.py

The decoder first learns to name words; then images take the place of a word (`VisionLanguageWrapper`,
arXiv:2304.08485), and nothing but the matrix that turns their features into embeddings learns.
"""

from __future__ import annotations

import argparse
import sys

from common import packages

with packages():
    import torch
    from common.toys import Score, fit, heads, run
    from torch import Tensor

    from x_transformers import (
        AutoregressiveWrapper,
        Decoder,
        Encoder,
        TransformerWrapper,
        VisionLanguageWrapper,
        ViTransformerWrapper,
    )

SIDE, KINDS = 8, 4
ASK, IS, NAMES, THINGS = 1, 2, 3, 7
IMAGE = THINGS + KINDS


def said(count: int) -> Tensor:
    """What is said of things (b 4): 'ask, thing, is, name'."""
    kind = torch.randint(0, KINDS, (count,))
    return torch.stack((torch.full_like(kind, ASK), THINGS + kind, torch.full_like(kind, IS), NAMES + kind), dim=1)


def shown(count: int) -> tuple[Tensor, Tensor]:
    """The same with images in place of things, and the images (b 1 8 8): rows, columns, a board or one shade."""
    ids = said(count)
    rows = (torch.arange(SIDE) % 2).float().unsqueeze(1).expand(SIDE, SIDE)
    patterns = torch.stack((rows, rows.T, (rows + rows.T) % 2, torch.ones_like(rows)))
    images = patterns[ids[:, 1] - THINGS].unsqueeze(1)
    ids[:, 1] = IMAGE
    return ids, images + 0.1 * torch.randn(images.shape)


def task(args: argparse.Namespace) -> list[Score]:
    net = TransformerWrapper(num_tokens=IMAGE + 1, max_seq_len=8, attn_layers=Decoder(**heads(32, 2), depth=1))
    talker = AutoregressiveWrapper(net)
    fit(talker, lambda: talker(said(args.batch_size)), args)
    eyes = ViTransformerWrapper(
        image_size=SIDE, patch_size=SIDE, channels=1, attn_layers=Encoder(**heads(16, 2), depth=1)
    )
    model = VisionLanguageWrapper(eyes, talker, IMAGE, feature_layer=-1)
    before = {name: weight.clone() for name, weight in model.named_parameters() if not weight.requires_grad}

    def loss() -> Tensor:
        ids, images = shown(args.batch_size)
        return model(ids, images, ids.masked_fill(torch.arange(4) < 3, -100))

    fit(model, loss, args)
    ids, images = shown(200)
    made = model.generate(ids[:, :3], 1, images, temperature=0.0)
    weights = dict(model.named_parameters())
    frozen = float(len(before) > 10 and all(torch.equal(weights[name], weight) for name, weight in before.items()))
    return [
        Score('names that are right', (made[:, 0] == ids[:, 3]).float().mean().item(), 0.95),
        Score('all but the projector is as it was', frozen, 1.0),
    ]


def main(argv: list[str] | None = None) -> int:
    """Run the script. Returns its exit code."""
    return run('name_patterns.py', __doc__, task, argv, steps=300, lr=1e-2)


if __name__ == '__main__':
    sys.exit(main())
