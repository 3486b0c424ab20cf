"""Video understanding: in which direction does a dot move? No single frame tells.

python examples/watch_videos.py
"""

from __future__ import annotations

import argparse
import sys

from common import packages

with packages():
    import torch
    from common.toys import Score, fit, run
    from torch import Tensor, nn
    from torch.nn.functional import cross_entropy

    from x_transformers import FactorizedVideoEncoder

SIDE, FRAMES = 8, 5
STEPS = torch.tensor([(0, 1), (0, -1), (1, 0), (-1, 0)])


def videos(count: int) -> tuple[Tensor, Tensor]:
    """Videos (b 1 t h w) of a dot, with noise, and its direction (b)."""
    which = torch.randint(0, len(STEPS), (count,))
    places = torch.randint(0, SIDE, (count, 1, 2)) + torch.arange(FRAMES).view(1, -1, 1) * STEPS[which].unsqueeze(1)
    row, column = (places % SIDE).unbind(dim=-1)
    frames = torch.zeros(count, FRAMES, SIDE**2).scatter(2, (row * SIDE + column).unsqueeze(-1), 1.0)
    frames = frames.unflatten(2, (SIDE, SIDE)).unsqueeze(1)
    return frames + 0.1 * torch.randn(frames.shape), which


class Watcher(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        sizes = dict(patch=(1, 2, 2), channels=1, image_size=SIDE, max_frames=FRAMES, heads=4)
        self.eyes, self.answer = FactorizedVideoEncoder(1, 1, 32, **sizes), nn.Linear(32, len(STEPS))

    def forward(self, video: Tensor) -> Tensor:
        return self.answer(self.eyes(video)[:, -1].amax(dim=1))  # of the last frame, which knows of all before


def task(args: argparse.Namespace) -> list[Score]:
    model = Watcher()

    def loss() -> Tensor:
        video, which = videos(args.batch_size)
        return cross_entropy(model(video), which)

    fit(model, loss, args)
    video, which = videos(500)
    with torch.no_grad():
        right = (model(video).argmax(dim=-1) == which).float().mean().item()
    return [Score('directions that are right', right, 0.95)]


def main(argv: list[str] | None = None) -> int:
    """Run the script. Returns its exit code."""
    return run('watch_videos.py', __doc__, task, argv, steps=400, lr=3e-3)


if __name__ == '__main__':
    sys.exit(main())
