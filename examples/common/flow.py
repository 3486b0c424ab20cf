"""Rectified flow: straight ways from data to noise, z_t = (1 - t) x + t noise, and their velocity, noise - x."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

Velocity = Callable[[Tensor, Tensor, Tensor], Tensor]  # z (b ...), t (b), what is asked for (b)


def waves(t: Tensor) -> Tensor:
    """Times (b) as vectors (b 16)."""
    angles = t.unsqueeze(-1) * math.pi * 2.0 ** torch.arange(8)
    return torch.cat((angles.sin(), angles.cos()), dim=-1)


def velocity_loss(velocity: Velocity, x: Tensor, asked: Tensor) -> Tensor:
    """The mean square error of velocities of data (b ...), at times that are mostly in the middle (2403.03206)."""
    t, noise = torch.randn(len(x)).sigmoid(), torch.randn_like(x)
    at = t.view(-1, *(1,) * (x.ndim - 1))
    return F.mse_loss(velocity((1 - at) * x + at * noise, t, asked), noise - x)


@torch.no_grad()
def walked(velocity: Velocity, z: Tensor, asked: Tensor, steps: int) -> Tensor:
    """Data (b ...) from noise, by Euler's steps."""
    for step in range(steps):
        t = torch.full((len(z),), 1 - step / steps)
        z = z - velocity(z, t, asked) / steps
    return z
