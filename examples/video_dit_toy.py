"""Learn to turn noise into videos of a dot that moves as a word says: a diffusion transformer of patches of space-time.

    python examples/video_dit_toy.py                    train, sample, and say how many dots go where they should
    python examples/video_dit_toy.py --out video.png    and draw a video of each word, frame by frame

A video is cut into patches of 2 frames of 2 by 2 pixels, which are the tokens of an Encoder; time and word shift, scale
and gate its branches (`use_adaln_zero`, arXiv:2212.09748). It learns the velocity of rectified flow, noise - video.

Exit codes: 0 done, 2 something asked for is not possible, 130 interrupted with Ctrl-C.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from common import packages

with packages():
    import torch
    from common.flow import velocity_loss, walked, waves
    from common.options import bounded, exit_code, positive, seed, size
    from einops.layers.torch import Rearrange
    from torch import Tensor, nn
    from tqdm import trange

    from x_transformers import Encoder

HEADS, PATCH = 4, 2  # frames, rows and columns of a patch
WORDS = {'right': (0, 1), 'left': (0, -1), 'down': (1, 0), 'up': (-1, 0)}
STEPS_OF = torch.tensor(list(WORDS.values()))


def read_arguments(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add('--steps', type=size, default=2000, help='of training (2000)')
    add('--batch-size', type=size, default=128, help='videos of a step (128)')
    add('--dim', type=bounded(int, HEADS), default=64, help='width of the model (64)')
    add('--depth', type=size, default=3, help='its blocks (3)')
    add('--side', type=bounded(int, 4), default=4, help='rows and columns of a frame (4)')
    add('--frames', type=bounded(int, 2), default=4, help='of a video (4)')
    add('--walk', type=size, default=20, help='steps from noise to a video (20)')
    add('--videos', type=size, default=400, help='to draw at the end (400)')
    add('--lr', type=positive, default=3e-3, help='learning rate of the first step, 0 in the last (0.003)')
    add('--seed', type=seed, default=0, help='of weights and videos (0)')
    add('--out', type=Path, help='a picture of videos')
    args = parser.parse_args(argv)
    for name, number, part in (('dim', args.dim, HEADS), ('side', args.side, PATCH), ('frames', args.frames, PATCH)):
        if number % part:
            parser.error(f'--{name} {number} cannot be divided by {part}')
    return args


def drawn(start: Tensor, words: Tensor, args: argparse.Namespace) -> Tensor:
    """Videos (b t h w), 1 where the dot is and -1 elsewhere; it goes out on one side and comes in on the other."""
    places = start.unsqueeze(1) + STEPS_OF[words].unsqueeze(1) * torch.arange(args.frames).unsqueeze(-1)
    row, column = (places % args.side).unbind(dim=-1)
    video = torch.full((*row.shape, args.side**2), -1.0)
    return video.scatter(2, (row * args.side + column).unsqueeze(-1), 1.0).unflatten(2, (args.side, args.side))


def videos(count: int, args: argparse.Namespace) -> tuple[Tensor, Tensor]:
    """Videos (b t h w) and their words (b)."""
    words = torch.randint(0, len(WORDS), (count,))
    return drawn(torch.randint(0, args.side, (count, 2)), words, args), words


def followed(made: Tensor, words: Tensor, args: argparse.Namespace) -> Tensor:
    """Which videos (b) show one dot in every frame, that goes where the word says from where it is in the first."""
    first = made[:, 0].flatten(1).argmax(dim=1)
    wanted = drawn(torch.stack((first // args.side, first % args.side), dim=1), words, args)
    return ((made > 0) == (wanted > 0)).flatten(1).all(dim=1)


class VideoTransformer(nn.Module):
    """The velocity of videos (b t h w) at times (b), of the words (b) that are asked for."""

    def __init__(self, args: argparse.Namespace) -> None:
        super().__init__()
        grid, dim = args.side // PATCH, args.dim
        cut = dict(s=PATCH, p=PATCH, q=PATCH)
        self.to_tokens = Rearrange('b (t s) (h p) (w q) -> b (t h w) (s p q)', **cut)
        self.to_video = Rearrange('b (t h w) (s p q) -> b (t s) (h p) (w q)', h=grid, w=grid, **cut)
        self.embed, self.velocity = nn.Linear(PATCH**3, dim), nn.Linear(dim, PATCH**3)
        self.places = nn.Parameter(torch.randn(args.frames // PATCH * grid**2, dim))
        self.words, self.time = nn.Embedding(len(WORDS), dim), nn.Sequential(nn.Linear(16, dim), nn.SiLU())
        heads = dict(heads=HEADS, attn_dim_head=dim // HEADS)
        self.stack = Encoder(dim=dim, depth=args.depth, **heads, use_adaln_zero=True, dim_condition=dim)
        nn.init.zeros_(self.velocity.weight)

    def forward(self, z: Tensor, t: Tensor, words: Tensor) -> Tensor:
        x = self.embed(self.to_tokens(z)) + self.places
        x = self.stack(x, condition=self.time(waves(t)) + self.words(words))
        return self.to_video(self.velocity(x))


def train(args: argparse.Namespace) -> VideoTransformer:
    torch.manual_seed(args.seed)
    model = VideoTransformer(args)
    optimizer = torch.optim.Adam(model.parameters(), lr=args.lr)
    for step in trange(args.steps, dynamic_ncols=True):
        optimizer.param_groups[0]['lr'] = args.lr * (1 - step / args.steps)
        velocity_loss(model, *videos(args.batch_size, args)).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    return model.eval()


def made(model: VideoTransformer, words: Tensor, args: argparse.Namespace) -> Tensor:
    """Videos (b t h w) of words (b)."""
    noise = torch.randn(len(words), args.frames, args.side, args.side)
    return walked(model, noise, words, args.walk)


def work(args: argparse.Namespace) -> None:
    model = train(args)
    words = torch.randint(0, len(WORDS), (args.videos,))
    right = followed(made(model, words, args), words, args)
    print(f'in {right.float().mean():.1%} of {args.videos} videos one dot goes where the word says')
    if args.out is not None:
        from matplotlib.figure import Figure

        figure = Figure(figsize=(1.2 * args.frames, 5), layout='constrained')
        shown = made(model, torch.arange(len(WORDS)), args)
        for row, word, video in zip(figure.subplots(len(WORDS), args.frames), WORDS, shown, strict=True):
            row[0].set_title(word, loc='left')
            for axis, frame in zip(row, video, strict=True):
                axis.imshow(frame.numpy(), vmin=-1, vmax=1, cmap='gray')
                axis.set_axis_off()
        figure.savefig(args.out)


def main(argv: list[str] | None = None) -> int:
    """Run the script. Returns its exit code."""
    args = read_arguments(argv)
    return exit_code('video_dit_toy.py', lambda: work(args))


if __name__ == '__main__':
    sys.exit(main())
