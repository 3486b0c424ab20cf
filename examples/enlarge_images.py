"""Super-resolution: an image of 4 by 4 pixels becomes one of 8 by 8, pixel by pixel, as an Image Transformer does it.

    python examples/enlarge_images.py

Each small pixel stands for a texture of 2 by 2. The decoder sees its own pixels in blocks (`Local1D`,
arXiv:1802.05751) and the whole small image by cross-attention.
"""

from __future__ import annotations

import argparse
import sys

from common import packages

with packages():
    import torch
    from common.toys import Score, fit, heads, run
    from torch import Tensor, nn

    from x_transformers import AutoregressiveWrapper, Decoder, TransformerWrapper
    from x_transformers.patterns import Local1D

SMALL, SIDE, BEGIN = 4, 8, 2
TEXTURES = torch.tensor([[[0, 0], [0, 0]], [[1, 1], [1, 1]], [[1, 0], [0, 1]], [[1, 1], [0, 0]]])


def images(count: int) -> tuple[Tensor, Tensor]:
    """Small images (b 16), and large ones (b 64) of two shades."""
    small = torch.randint(0, len(TEXTURES), (count, SMALL, SMALL))
    large = TEXTURES[small].transpose(2, 3).reshape(count, SIDE, SIDE)
    return small.flatten(1), large.flatten(1)


class Enlarger(nn.Module):
    def __init__(self, dim: int) -> None:
        super().__init__()
        self.pixels, self.places = nn.Embedding(len(TEXTURES), dim), nn.Parameter(torch.randn(SMALL**2, dim))
        blocks = dict(attn_sparse_pattern=Local1D(2 * SIDE, 2 * SIDE), cross_attn_sparse_pattern=None)
        stack = Decoder(**heads(dim), depth=2, cross_attend=True, **blocks)
        # a place is that of the pixel to be drawn next, and there is none behind the last
        places = dict(max_seq_len=SIDE**2 + 1, axial_abs_pos_emb=(SIDE + 1, SIDE))
        net = TransformerWrapper(num_tokens=3, attn_layers=stack, **places)
        for table in net.axial_pos:
            nn.init.normal_(table)
        self.draw = AutoregressiveWrapper(net)

    def seen(self, small: Tensor) -> Tensor:
        return self.pixels(small) + self.places

    def forward(self, small: Tensor, large: Tensor) -> Tensor:
        begun = torch.nn.functional.pad(large, (1, 0), value=BEGIN)
        return self.draw(begun, context=self.seen(small))

    def enlarged(self, small: Tensor) -> Tensor:
        begin = torch.full((len(small), 1), BEGIN)
        return self.draw.generate(begin, SIDE**2, temperature=0.0, context=self.seen(small))


def task(args: argparse.Namespace) -> list[Score]:
    model = Enlarger(64)
    fit(model, lambda: model(*images(args.batch_size)), args)
    small, large = images(200)
    with torch.no_grad():
        right = (model.enlarged(small) == large).all(dim=1).float().mean().item()
    return [Score('large images that are right in every pixel', right, 0.95)]


def main(argv: list[str] | None = None) -> int:
    """Run the script. Returns its exit code."""
    return run('enlarge_images.py', __doc__, task, argv, steps=600, batch=32)


if __name__ == '__main__':
    sys.exit(main())
