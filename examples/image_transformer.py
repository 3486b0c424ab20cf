"""Train an Image Transformer: pixels are tokens, and each is foretold by those around it that came before.

    python examples/image_transformer.py                              waves of 16 by 16 pixels, tile after tile
    python examples/image_transformer.py --pattern local1d --order raster        row after row
    python examples/image_transformer.py --pattern dense              every pixel sees all that came before
    python examples/image_transformer.py --head mixture               a mixture of logistics instead of 16 logits
    python examples/image_transformer.py --channels 3                 in colour, each channel a token of its own
    python examples/image_transformer.py --source                     from an image of a quarter of the side
    python examples/image_transformer.py --set ff_glu=True            any flag of the model
    python examples/image_transformer.py --out runs/image_transformer-001 --resume   go on after an interruption

Images are drawn as they are needed: waves of any direction, length and phase, in 16 shades, with a little noise; their
direction decides their colours. Tiles are of 4 by 8 pixels. The channels of a pixel follow one another, so that to the
model a colour image is one that is three times as wide. With --source, an encoder reads the small image, and the
decoder attends to it. A run writes checkpoints as it goes, which --resume goes on from, and at the end loss.png and
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
    from torch import Tensor, nn

    from x_transformers import Decoder, DMOLHead, Encoder, TransformerWrapper
    from x_transformers.patterns import Conv2D, Local1D, Local2D, Mix, Sliding, Strided, block_raster_order

SHADES, TILE, SMALLER = 16, (4, 8), 4
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
    channels: int = option(1, int, 'of a pixel: shades, or colours', choices=(1, 3))
    source: bool = option(False, bool, 'give an image of a quarter of the side, to be enlarged')
    pattern: str = option('local2d', str, 'what a pixel sees of those before', choices=PATTERNS)
    order: str = option('block', str, 'tile after tile, or row after row', choices=('block', 'raster'))
    head: str = option(
        'softmax', str, 'a logit for each shade, or a mixture of logistics', choices=('softmax', 'mixture')
    )

    @property
    def grid(self) -> tuple[int, int]:
        """Rows, and what stands in one."""
        return self.side, self.side * self.channels

    @property
    def tile(self) -> tuple[int, int]:
        return TILE[0], TILE[1] * self.channels


# data


def waves(count: int, config: Config, generator: torch.Generator) -> Tensor:
    """Images of shades, (n side side channels)."""
    side, channel = config.side, torch.arange(config.channels)
    angle, length, phase = torch.rand(3, count, 1, 1, 1, generator=generator)
    angle, frequency = math.pi * angle, 2 * math.pi / (4 + 8 * length)
    row, column = torch.arange(side).view(-1, 1, 1), torch.arange(side).view(-1, 1)
    height = (angle.cos() * row + angle.sin() * column) * frequency + 2 * math.pi * phase + channel * angle
    height = height.sin() + 0.05 * torch.randn(count, side, side, config.channels, generator=generator)
    return ((height + 1) / 2 * (SHADES - 1)).round().clamp(0, SHADES - 1).long()


def smaller(images: Tensor) -> Tensor:
    """The means of squares, as shades."""
    squares = images.float().unfold(1, SMALLER, SMALLER).unfold(2, SMALLER, SMALLER)
    return squares.mean(dim=(-2, -1)).round().long()


# model


def pattern_of(config: Config) -> Any:
    (height, width), tile = config.grid, config.tile
    if config.pattern in ('conv2d', 'local1d', 'strided') and config.order == 'block':
        raise Stop(f'--pattern {config.pattern} is one of rows: it needs --order raster')
    if config.pattern == 'conv2d' and config.channels > 1:
        raise Stop(f'--pattern conv2d sees squares of pixels: it cannot be combined with --channels {config.channels}')
    return {
        'local2d': Local2D((height, width), tile, tile, order=config.order),
        'local1d': Local1D(2 * width, 2 * width),
        'conv2d': Conv2D((height, width), 11),
        'strided': Mix((Sliding(width), Strided(width)), how='merge'),
        'dense': None,
    }[config.pattern]


class Enlarger(nn.Module):
    """An encoder of small images, whose vectors the decoder of large ones attends to."""

    def __init__(self, encoder: TransformerWrapper, decoder: TransformerWrapper) -> None:
        super().__init__()
        self.encoder, self.decoder = encoder, decoder

    @property
    def config(self) -> dict[str, Any]:
        return dict(encoder=self.encoder.config, decoder=self.decoder.config)

    def on_step_end(self, progress: float) -> None:
        self.decoder.on_step_end(progress)


def build_model(config: Config) -> TransformerWrapper | Enlarger:
    if config.source and config.side % SMALLER:
        raise Stop(f'--source needs a --side that is a multiple of {SMALLER}, not {config.side}')
    head_width, pattern, (height, width) = width_of_heads(config.dim, config.heads), pattern_of(config), config.grid
    decoder, wrapper = route_flags(config.flags, (Decoder, TransformerWrapper), OWN_OPTION)
    if config.head == 'mixture':
        wrapper['to_logits'] = DMOLHead(config.dim, channels=1, components=5, levels=SHADES)
    else:
        wrapper.setdefault('logits_dim', SHADES)
    wrapper.setdefault('axial_abs_pos_emb', config.grid)
    sizes = dict(depth=config.depth, heads=config.heads, attn_dim_head=head_width)
    if config.source:
        sizes |= dict(cross_attend=True, cross_attn_sparse_pattern=None)
    try:
        layers = Decoder(dim=config.dim, **{**sizes, 'attn_sparse_pattern': pattern, **decoder})
        net = TransformerWrapper(num_tokens=SHADES + 1, max_seq_len=height * width, attn_layers=layers, **wrapper)
        context = dict(context=torch.zeros(1, 1, config.dim)) if config.source else {}
        net.eval()(torch.zeros(1, height * width, dtype=torch.long), **context)
    except (TypeError, ValueError) as error:
        raise Stop(f'there is no such model: {error}') from None
    return (Enlarger(build_encoder(config, head_width), net) if config.source else net).train()


def build_encoder(config: Config, head_width: int) -> TransformerWrapper:
    height, width = (size // SMALLER for size in config.grid)
    layers = Encoder(dim=config.dim, depth=1, heads=config.heads, attn_dim_head=head_width)
    sizes = dict(max_seq_len=height * width, axial_abs_pos_emb=(height, width))
    return TransformerWrapper(num_tokens=SHADES, attn_layers=layers, return_only_embed=True, **sizes)


class Run(runs.Run):
    """An Image Transformer in training. Its sequences begin with a token of their own, SHADES."""

    config: Config
    unit = 'nats per pixel'

    def __init__(self, config: Config, device: torch.device) -> None:
        super().__init__(config, device)
        self.set_model(build_model(config))
        self.painter = self.model.decoder if config.source else self.model
        raster = torch.arange(math.prod(config.grid))
        order = block_raster_order(config.grid, config.tile) if config.order == 'block' else raster
        self.order = order.to(device)  # which pixel is foretold at each place
        self.known = waves(64, config, torch.Generator().manual_seed(config.seed + 1))
        self.digest = hashlib.sha256(self.known.numpy().data).hexdigest()

    def loss_of(self, images: Tensor) -> Tensor:
        """Nats per pixel."""
        pixels = images.to(self.device).flatten(1)[:, self.order]
        options = dict(pos=self.order, **self.source_of(images))
        given = self.painter(F.pad(pixels[:, :-1], (1, 0), value=SHADES), **options)
        if self.config.head == 'mixture':
            loss = -self.painter.to_logits.log_prob(given, pixels.unsqueeze(-1)).mean()
        else:
            loss = F.cross_entropy(given.transpose(1, 2), pixels)
        return loss * self.config.channels

    def source_of(self, images: Tensor) -> dict[str, Tensor]:
        if not self.config.source:
            return {}
        small = smaller(images).flatten(1).to(self.device)
        return dict(context=self.model.encoder(small))

    def batch_loss(self) -> Tensor:
        return self.loss_of(waves(self.config.batch_size, self.config, self.draws))

    @torch.no_grad()
    def score(self, images: Tensor | None = None) -> float:
        self.model.eval()
        with self.autocast():
            parts = (self.known if images is None else images).split(16)
            found = sum(self.loss_of(some).item() * len(some) for some in parts) / sum(map(len, parts))
        self.model.train()
        return found

    @torch.no_grad()
    def samples(self, images: Tensor) -> Tensor:
        """As many images, pixel by pixel, from their sources if there are any:  n side side channels."""
        self.model.eval()
        generator = torch.Generator(self.device).manual_seed(self.config.seed)
        last, cache, found = torch.full((len(images), 1), SHADES, device=self.device), None, []
        source = self.source_of(images)
        for place in range(len(self.order)):
            options = dict(
                pos=self.order[: place + 1], return_intermediates=True, input_not_include_cache=True, **source
            )
            given, cache = self.painter(last, cache=cache, **options)
            if self.config.head == 'mixture':
                last = self.painter.to_logits.sample(given[:, -1:], generator).squeeze(-1)
            else:
                last = given[:, -1].float().softmax(dim=-1).multinomial(1, generator=generator)
            found.append(last)
        self.model.train()
        # back from the order in which they came
        return torch.cat(found, dim=1)[:, self.order.argsort()].cpu().view(images.shape)


# results


def draw_samples(run: Run, path: Path) -> None:
    """Generated images, their sources if there are any, and real ones below them."""
    real = run.known[:8]
    rows = [run.samples(real), *[smaller(real)] * run.config.source, real]
    figure = Figure(figsize=(9, 1.5 * len(rows)), layout='constrained')
    figure.suptitle('generated, and below them real ones' + ', as they were given and as they are' * run.config.source)
    for place, image in enumerate((image for row in rows for image in row), start=1):
        axes = figure.add_subplot(len(rows), 8, place)
        axes.imshow((image.float() / (SHADES - 1)).expand(-1, -1, 3).numpy())
        axes.set_axis_off()
    write_figure(figure, path, 'the picture of samples')


def finish(run: Run, out: Path) -> None:
    found = run.score(waves(128, run.config, torch.Generator().manual_seed(run.config.seed + 2)))
    curves(run, out / 'loss.png', 'Waves', 'nats per pixel')
    draw_samples(run, out / 'samples.png')
    print(f'pictures: loss.png and samples.png in {out}, {saved(out)}\n')
    print(f'test, nats per pixel: {found:.3f}, by chance {run.config.channels * math.log(SHADES):.3f}')


def work(args: argparse.Namespace) -> None:
    runs.conduct('image_transformer', args, Config, Run, finish)


def main(argv: list[str] | None = None) -> int:
    """Run the script. Returns its exit code."""
    parser = run_parser('image_transformer', __doc__, Config, interval=250)
    return exit_code('image_transformer.py', lambda: work(parse(parser, argv)))


if __name__ == '__main__':
    sys.exit(main())
