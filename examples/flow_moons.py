"""Learn to turn noise into points of two moons, the one that a word asks for: rectified flow by joint attention.

    python examples/flow_moons.py                     train, sample, and say how many points lie in their moon
    python examples/flow_moons.py --out moons.png     and draw them

A point on the way is z_t = (1 - t) x + t noise; the model learns its velocity, noise - x, for times t drawn as Stable
Diffusion 3 does (arXiv:2403.03206), and walks back from t = 1 to 0 in equal steps. Its blocks let the point and the
word, each with weights of its own, attend to both (`JointAttention`); the time shifts, scales and gates them, by linear
layers that are zero at first (arXiv:2212.09748).

Exit codes: 0 done, 2 something asked for is not possible, 130 interrupted with Ctrl-C.
"""

from __future__ import annotations

import argparse
import math
import sys
from pathlib import Path

from common import packages

with packages():
    import torch
    import torch.nn.functional as F
    from common.flow import velocity_loss, walked, waves
    from common.options import bounded, exit_code, positive, seed, size
    from torch import Tensor, nn

    from x_transformers import JointAttention

HEADS, WIDE = 4, 0.15  # a point is in a moon if it is no further from its line


def read_arguments(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add('--steps', type=size, default=1500, help='of training (1500)')
    add('--batch-size', type=size, default=256, help='points of a step (256)')
    add('--dim', type=bounded(int, HEADS), default=64, help='width of the model (64)')
    add('--depth', type=size, default=3, help='its blocks (3)')
    add('--walk', type=size, default=40, help='steps from noise to a point (40)')
    add('--points', type=size, default=1000, help='points to draw at the end (1000)')
    add('--lr', type=positive, default=2e-3, help='learning rate of the first step, 0 in the last (0.002)')
    add('--seed', type=seed, default=0, help='of weights and points (0)')
    add('--out', type=Path, help='a picture of the points')
    args = parser.parse_args(argv)
    if args.dim % HEADS:
        parser.error(f'--dim {args.dim} cannot be divided by {HEADS}')
    return args


def on_lines(angle: Tensor, which: Tensor) -> Tensor:
    """Points (b 2) of the lines of two half circles that grip one another."""
    upper = torch.stack((angle.cos(), angle.sin()), dim=-1)
    lower = torch.stack((1 - angle.cos(), 0.5 - angle.sin()), dim=-1)
    return torch.where(which.unsqueeze(-1) == 0, upper, lower) - torch.tensor([0.5, 0.25])


def moons(count: int) -> tuple[Tensor, Tensor]:
    """Points (b 2), and of which moon each is (b)."""
    which = torch.randint(0, 2, (count,))
    return on_lines(math.pi * torch.rand(count), which) + 0.05 * torch.randn(count, 2), which


def within(points: Tensor, which: Tensor) -> Tensor:
    """Which points (b) lie in their moon."""
    angles = torch.linspace(0, math.pi, 200)
    lines = torch.stack([on_lines(angles, torch.full((200,), moon)) for moon in (0, 1)])
    return (lines[which] - points.unsqueeze(1)).norm(dim=-1).amin(dim=1) < WIDE


class Modulated(nn.Module):
    """Shift, scale and gate of two branches from a vector, all zero at first."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.norm, self.adaln = nn.LayerNorm(dim, elementwise_affine=False), nn.Linear(dim, 6 * dim)
        nn.init.zeros_(self.adaln.weight), nn.init.zeros_(self.adaln.bias)
        self.ff = nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim))


class Block(nn.Module):
    """Points and words attend to both, then each to nothing but itself:  b n d, b m d, b d -> b n d, b m d"""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.attn = JointAttention(dim, HEADS, dim // HEADS)
        self.sides = nn.ModuleList(Modulated(dim) for _ in 'ab')

    def forward(self, a: Tensor, b: Tensor, condition: Tensor) -> tuple[Tensor, Tensor]:
        parts = [side.adaln(F.silu(condition)).unsqueeze(1).chunk(6, dim=-1) for side in self.sides]
        pairs = list(zip((a, b), self.sides, parts, strict=True))
        found = self.attn(*(side.norm(x) * (1 + p[1]) + p[0] for x, side, p in pairs))
        streams = [x + p[2] * new for (x, _, p), new in zip(pairs, found, strict=True)]
        made = [
            x + p[5] * side.ff(side.norm(x) * (1 + p[4]) + p[3]) for x, (_, side, p) in zip(streams, pairs, strict=True)
        ]
        return made[0], made[1]


class Flow(nn.Module):
    """The velocity of points (b 2) at times (b), of the moons (b) that are asked for."""

    def __init__(self, dim: int, depth: int) -> None:
        super().__init__()
        self.point, self.word = nn.Linear(2, dim), nn.Embedding(2, dim)
        self.time = nn.Sequential(nn.Linear(16, dim), nn.SiLU(), nn.Linear(dim, dim))
        self.blocks = nn.ModuleList(Block(dim) for _ in range(depth))
        self.norm, self.velocity = nn.LayerNorm(dim), nn.Linear(dim, 2)
        nn.init.zeros_(self.velocity.weight)

    def forward(self, z: Tensor, t: Tensor, which: Tensor) -> Tensor:
        condition = self.time(waves(t))
        a, b = self.point(z).unsqueeze(1), self.word(which).unsqueeze(1)
        for block in self.blocks:
            a, b = block(a, b, condition)
        return self.velocity(self.norm(a)).squeeze(1)


def train(args: argparse.Namespace) -> nn.Module:
    torch.manual_seed(args.seed)
    model = Flow(args.dim, args.depth)
    optimizer = torch.optim.Adam(model.parameters(), lr=args.lr)
    for step in range(args.steps):
        optimizer.param_groups[0]['lr'] = args.lr * (1 - step / args.steps)
        velocity_loss(model, *moons(args.batch_size)).backward()
        optimizer.step()
        optimizer.zero_grad()
    return model.eval()


def work(args: argparse.Namespace) -> None:
    model = train(args)
    which = torch.randint(0, 2, (args.points,))
    points = walked(model, torch.randn(args.points, 2), which, args.walk)
    print(f'{within(points, which).float().mean():.1%} of {args.points} points lie in the moon that was asked for')
    if args.out is not None:
        from matplotlib.figure import Figure

        figure = Figure(figsize=(5, 3), layout='constrained')
        axis = figure.subplots()
        axis.scatter(*points.T.tolist(), s=4, c=which.tolist(), cmap='coolwarm')
        axis.set_aspect('equal')
        figure.savefig(args.out)


def main(argv: list[str] | None = None) -> int:
    """Run the script. Returns its exit code."""
    args = read_arguments(argv)
    return exit_code('flow_moons.py', lambda: work(args))


if __name__ == '__main__':
    sys.exit(main())
