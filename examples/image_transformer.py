"""Train an Image Transformer: pixels are tokens, and each is foretold by those around it that came before.

    python examples/image_transformer.py                              waves of 16 by 16 pixels, tile after tile
    python examples/image_transformer.py --pattern local1d --order raster        row after row
    python examples/image_transformer.py --pattern dense              every pixel sees all that came before
    python examples/image_transformer.py --head mixture               a mixture of logistics instead of 16 logits
    python examples/image_transformer.py --set ff_glu=True            any flag of the model
    python examples/image_transformer.py --out runs/image_transformer-001 --resume   go on after an interruption

Images are drawn as they are needed: waves of any direction, length and phase, in 16 shades, with a little noise. Tiles
are of 4 by 8 pixels. A run writes checkpoints as it goes, which --resume goes on from, and at the end loss.png and
samples.png, images that were generated pixel by pixel beside real ones.

Exit codes: 0 done, 1 the training failed or cannot be saved, 2 something asked for is not possible, 130 interrupted
with Ctrl-C (143 with SIGTERM), after saving.
"""

from __future__ import annotations

import argparse
import hashlib
import math
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from common import packages

with packages():
    import torch
    import torch.nn.functional as F
    from common import runs
    from common.folders import saved
    from common.options import Stop, exit_code, option, parse, route_flags, run_parser, size, width_of_heads
    from common.pictures import curves, write_figure
    from matplotlib.figure import Figure
    from torch import Tensor

    from x_transformers import Decoder, DMOLHead, TransformerWrapper
    from x_transformers.patterns import Conv2D, Local1D, Local2D, Mix, Sliding, Strided, block_raster_order

SHADES, TILE = 16, (4, 8)
PATTERNS = ('local2d', 'local1d', 'conv2d', 'strided', 'dense')
OWN_OPTION = {'dim', 'depth', 'heads', 'num_tokens', 'max_seq_len', 'attn_layers', 'attn_sparse_pattern', 'to_logits'}


@dataclass(frozen=True)
class Config(runs.Config):
    steps: int = option(400, size, 'training steps; --resume may raise them, for a longer learning rate curve')
    batch_size: int = option(16, size, 'images per step')
    dim: int = option(64, size, 'width of the model')
    depth: int = option(3, size, 'number of layers')
    heads: int = option(4, size, 'attention heads')
    side: int = option(16, size, 'height and width of an image, in pixels')
    pattern: str = option('local2d', str, 'what a pixel sees of those before', choices=PATTERNS)
    order: str = option('block', str, 'tile after tile, or row after row', choices=('block', 'raster'))
    head: str = option(
        'softmax', str, 'a logit for each shade, or a mixture of logistics', choices=('softmax', 'mixture')
    )


# data


def waves(count: int, side: int, generator: torch.Generator) -> Tensor:
    """Images of shades, (n side side)."""
    angle, length, phase = torch.rand(3, count, 1, 1, generator=generator)
    angle, frequency = math.pi * angle, 2 * math.pi / (4 + 8 * length)
    row, column = torch.arange(side).view(-1, 1), torch.arange(side)
    height = ((angle.cos() * row + angle.sin() * column) * frequency + 2 * math.pi * phase).sin()
    height = height + 0.05 * torch.randn(count, side, side, generator=generator)
    return ((height + 1) / 2 * (SHADES - 1)).round().clamp(0, SHADES - 1).long()


# model


def pattern_of(config: Config) -> Any:
    side = config.side
    if config.pattern in ('conv2d', 'local1d', 'strided') and config.order == 'block':
        raise Stop(f'--pattern {config.pattern} is one of rows: it needs --order raster')
    return {
        'local2d': Local2D((side, side), TILE, TILE, order=config.order),
        'local1d': Local1D(2 * side, 2 * side),
        'conv2d': Conv2D((side, side), 11),
        'strided': Mix((Sliding(side), Strided(side)), how='merge'),
        'dense': None,
    }[config.pattern]


def build_model(config: Config) -> TransformerWrapper:
    width, pattern, pixels = width_of_heads(config.dim, config.heads), pattern_of(config), config.side**2
    decoder, wrapper = route_flags(config.flags, (Decoder, TransformerWrapper), OWN_OPTION)
    if config.head == 'mixture':
        wrapper['to_logits'] = DMOLHead(config.dim, channels=1, components=5, levels=SHADES)
    else:
        wrapper.setdefault('logits_dim', SHADES)
    wrapper.setdefault('axial_abs_pos_emb', (config.side, config.side))
    sizes = dict(dim=config.dim, depth=config.depth, heads=config.heads, attn_dim_head=width)
    try:
        layers = Decoder(**{**sizes, 'attn_sparse_pattern': pattern, **decoder})
        net = TransformerWrapper(num_tokens=SHADES + 1, max_seq_len=pixels, attn_layers=layers, **wrapper)
        net.eval()(torch.zeros(1, pixels, dtype=torch.long))
    except (TypeError, ValueError) as error:
        raise Stop(f'there is no such model: {error}') from None
    return net.train()


class Run(runs.Run):
    """An Image Transformer in training. Its sequences begin with a token of their own, SHADES."""

    config: Config
    unit = 'nats per pixel'

    def __init__(self, config: Config, device: torch.device) -> None:
        super().__init__(config, device)
        self.set_model(build_model(config))
        side = config.side
        raster = torch.arange(side * side)
        order = block_raster_order((side, side), TILE) if config.order == 'block' else raster
        self.order = order.to(device)  # which pixel is foretold at each place
        self.known = waves(64, side, torch.Generator().manual_seed(config.seed + 1))
        self.digest = hashlib.sha256(self.known.numpy().data).hexdigest()

    def loss_of(self, images: Tensor) -> Tensor:
        """Nats per pixel."""
        pixels = images.to(self.device).flatten(1)[:, self.order]
        given = self.model(F.pad(pixels[:, :-1], (1, 0), value=SHADES), pos=self.order)
        if self.config.head == 'mixture':
            return -self.model.to_logits.log_prob(given, pixels.unsqueeze(-1)).mean()
        return F.cross_entropy(given.transpose(1, 2), pixels)

    def batch_loss(self) -> Tensor:
        return self.loss_of(waves(self.config.batch_size, self.config.side, self.draws))

    @torch.no_grad()
    def score(self, images: Tensor | None = None) -> float:
        self.model.eval()
        with self.autocast():
            parts = (self.known if images is None else images).split(16)
            found = sum(self.loss_of(some).item() * len(some) for some in parts) / sum(map(len, parts))
        self.model.train()
        return found

    @torch.no_grad()
    def samples(self, count: int) -> Tensor:
        """Images, pixel by pixel:  n side side."""
        self.model.eval()
        generator = torch.Generator(self.device).manual_seed(self.config.seed)
        last, cache, found = torch.full((count, 1), SHADES, device=self.device), None, []
        for place in range(len(self.order)):
            options = dict(pos=self.order[: place + 1], return_intermediates=True, input_not_include_cache=True)
            given, cache = self.model(last, cache=cache, **options)
            if self.config.head == 'mixture':
                last = self.model.to_logits.sample(given[:, -1:], generator).squeeze(-1)
            else:
                last = given[:, -1].float().softmax(dim=-1).multinomial(1, generator=generator)
            found.append(last)
        self.model.train()
        # back from the order in which they came
        return torch.cat(found, dim=1)[:, self.order.argsort()].cpu().unflatten(1, (self.config.side, -1))


# results


def draw_samples(run: Run, path: Path) -> None:
    """Generated images, and real ones below them."""
    generated = run.samples(8)
    figure = Figure(figsize=(9, 3), layout='constrained')
    figure.suptitle('generated, and below them real ones')
    for place, image in enumerate((*generated, *run.known[:8]), start=1):
        axes = figure.add_subplot(2, 8, place)
        axes.imshow(image.numpy(), cmap='gray', vmin=0, vmax=SHADES - 1)
        axes.set_axis_off()
    write_figure(figure, path, 'the picture of samples')


def finish(run: Run, out: Path) -> None:
    found = run.score(waves(128, run.config.side, torch.Generator().manual_seed(run.config.seed + 2)))
    curves(run, out / 'loss.png', 'Waves', 'nats per pixel')
    draw_samples(run, out / 'samples.png')
    print(f'pictures: loss.png and samples.png in {out}, {saved(out)}\n')
    print(f'test, nats per pixel: {found:.3f}, by chance {math.log(SHADES):.3f}')


def work(args: argparse.Namespace) -> None:
    runs.conduct('image_transformer', args, Config, Run, finish)


def main(argv: list[str] | None = None) -> int:
    """Run the script. Returns its exit code."""
    parser = run_parser('image_transformer', __doc__, Config, interval=250)
    return exit_code('image_transformer.py', lambda: work(parse(parser, argv)))


if __name__ == '__main__':
    sys.exit(main())
