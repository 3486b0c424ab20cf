"""Train a vision transformer to read handwritten digits.

    python examples/classify_images.py                                 1,797 digits of 8 by 8 pixels, from scikit-learn
    python examples/classify_images.py --steps 3000 --dim 96           longer, wider
    python examples/classify_images.py --set num_register_tokens=4     any flag of the model
    python examples/classify_images.py --out runs/classify_images-001 --resume         go on after an interruption

Of the digits a fifth is kept for the test at the end and a tenth for validation. The others are turned, shifted and
stretched a little, in another way each time they are seen. A run writes checkpoints as it goes, which --resume goes on
from, and at the end loss.png, confusion.png (which digit was taken for which) and mistakes.png.

Exit codes: 0 done, 1 the training failed or cannot be saved, 2 something asked for is not possible, 130 interrupted
with Ctrl-C (143 with SIGTERM), after saving.
"""

from __future__ import annotations

import argparse
import hashlib
import sys
from dataclasses import dataclass
from pathlib import Path

from common import packages

with packages():
    import torch
    import torch.nn.functional as F
    from common import runs
    from common.folders import saved
    from common.options import (
        Stop,
        exit_code,
        not_negative,
        option,
        parse,
        route_flags,
        run_parser,
        size,
        width_of_heads,
    )
    from common.pictures import confusion, curves, write_figure
    from matplotlib.figure import Figure
    from torch import Tensor

    from x_transformers import Encoder, ViTransformerWrapper

# flags that help a small encoder; --set overrides each
STACK = dict(use_rmsnorm=True, ff_glu=True, ff_swish=True, ff_no_bias=True, zero_init_branch_output=True)
WRAPPER = dict(patch_norm=False)  # a norm of four pixels would take away how dark they are
OWN_OPTION = {'dim', 'depth', 'heads', 'image_size', 'patch_size', 'channels', 'num_classes', 'attn_layers'}
SIDE = 8  # of an image, in pixels


@dataclass(frozen=True)
class Config(runs.Config):
    steps: int = option(1500, size, 'training steps; --resume may raise them, for a longer learning rate curve')
    batch_size: int = option(64, size, 'images per step')
    dim: int = option(64, size, 'width of the model')
    depth: int = option(4, size, 'number of layers')
    heads: int = option(4, size, 'attention heads')
    patch_size: int = option(2, size, 'height and width of a patch, in pixels')
    bend: float = option(1.0, not_negative, 'how much images are turned, shifted and stretched; 0 leaves them')


# data


def read_digits(seed: int) -> dict[str, tuple[Tensor, Tensor]]:
    """Images (n 1 8 8), from -1 to 1, and what they show, to train on, to validate on and to test on."""
    with packages():
        from sklearn.datasets import load_digits
    found = load_digits()
    images = torch.from_numpy(found.images).float().unsqueeze(1) / 8 - 1
    labels = torch.from_numpy(found.target).long()
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(seed))
    test, validate = len(order) // 5, len(order) // 10
    parts = dict(zip(('test', 'validate', 'train'), order.tensor_split((test, test + validate)), strict=True))
    print('data: handwritten digits, ' + ', '.join(f'{len(part):,} to {name}' for name, part in parts.items()))
    return {name: (images[part], labels[part]) for name, part in parts.items()}


def bent(images: Tensor, strength: float, generator: torch.Generator) -> Tensor:
    """Images (b 1 8 8) turned by up to 0.15 radians, stretched by up to 10 percent, shifted by up to 0.6 pixels."""
    angle, wide, high, right, down = (2 * torch.rand(5, len(images), generator=generator) - 1) * strength
    angle, wide, high = 0.15 * angle, 1 + 0.1 * wide, 1 + 0.1 * high
    rows = [angle.cos() * wide, -angle.sin() * high, 0.6 * right * 2 / SIDE]
    rows += [angle.sin() * wide, angle.cos() * high, 0.6 * down * 2 / SIDE]
    places = F.affine_grid(torch.stack(rows, dim=-1).view(-1, 2, 3), list(images.shape), align_corners=False)
    # paper, which is -1, becomes 0 while it is filled in at the border
    return F.grid_sample(images + 1, places, align_corners=False) - 1


# model


def build_model(config: Config) -> ViTransformerWrapper:
    width = width_of_heads(config.dim, config.heads)
    encoder, wrapper = route_flags(config.flags, (Encoder, ViTransformerWrapper), OWN_OPTION)
    encoder = {**STACK, 'attn_dim_head': width, **encoder}
    try:
        layers = Encoder(dim=config.dim, depth=config.depth, heads=config.heads, **encoder)
        sizes = dict(image_size=SIDE, patch_size=config.patch_size, channels=1, num_classes=10)
        net = ViTransformerWrapper(**sizes, attn_layers=layers, **{**WRAPPER, **wrapper})
        answer = net.eval()(torch.zeros(1, 1, SIDE, SIDE))
    except (TypeError, ValueError) as error:
        raise Stop(f'there is no such model: {error}') from None
    if answer.shape != (1, 10):
        raise Stop(f'there is no such model: it answers with {tuple(answer.shape)} numbers, not with one per digit')
    return net.train()


class Run(runs.Run):
    """A vision transformer in training."""

    config: Config

    def __init__(self, config: Config, device: torch.device) -> None:
        super().__init__(config, device)
        self.set_model(build_model(config))
        self.parts = read_digits(config.seed)
        everything = torch.cat([images.flatten() for images, _ in self.parts.values()])
        self.digest = hashlib.sha256(everything.numpy().data).hexdigest()

    def batch_loss(self) -> Tensor:
        images, labels = self.parts['train']
        drawn = torch.randint(len(labels), (self.config.batch_size,), generator=self.draws)
        seen = bent(images[drawn], self.config.bend, self.draws)
        return F.cross_entropy(self.model(seen.to(self.device)), labels[drawn].to(self.device))

    @torch.no_grad()
    def answers(self, part: str) -> Tensor:
        """What the model takes each image of a part for."""
        self.model.eval()
        with self.autocast():
            found = [self.model(some.to(self.device)).argmax(-1).cpu() for some in self.parts[part][0].split(256)]
        self.model.train()
        return torch.cat(found)

    def score(self) -> float:
        return (self.answers('validate') == self.parts['validate'][1]).float().mean().item()

    def said(self, score: float) -> str:
        return f'{score:.1%} right'


# results


def draw_mistakes(run: Run, answers: Tensor, path: Path) -> None:
    """The images of the test that were taken for another digit, up to 24 of them."""
    images, labels = run.parts['test']
    wrong = (answers != labels).nonzero().flatten()[:24].tolist()
    figure = Figure(figsize=(8, 1 + 1.3 * max(1, -(-len(wrong) // 8))), layout='constrained')
    figure.suptitle(f'{(answers != labels).sum()} of {len(labels)} digits of the test are taken for others')
    for place, index in enumerate(wrong, start=1):
        axes = figure.add_subplot(-(-len(wrong) // 8), 8, place)
        axes.imshow(images[index, 0].numpy(), cmap='gray_r')
        axes.set_axis_off()
        axes.set_title(f'{labels[index]}, not {answers[index]}', fontsize='small')
    write_figure(figure, path, 'the picture of mistakes')


def finish(run: Run, out: Path) -> None:
    answers, (_, labels) = run.answers('test'), run.parts['test']
    curves(run, out / 'loss.png', 'Handwritten digits', 'nats', score='share of right answers')
    confusion(torch.bincount(10 * labels + answers, minlength=100).view(10, 10), [*'0123456789'], out / 'confusion.png')
    draw_mistakes(run, answers, out / 'mistakes.png')
    print(f'pictures: loss.png, confusion.png and mistakes.png in {out}, {saved(out)}\n')
    right = answers == labels
    print(f'test accuracy: {right.float().mean():.2%}, {right.sum()} of {len(right)}')


def work(args: argparse.Namespace) -> None:
    runs.conduct('classify_images', args, Config, Run, finish)


def main(argv: list[str] | None = None) -> int:
    """Run the script. Returns its exit code."""
    parser = run_parser('classify_images', __doc__, Config, interval=250)
    return exit_code('classify_images.py', lambda: work(parse(parser, argv)))


if __name__ == '__main__':
    sys.exit(main())
