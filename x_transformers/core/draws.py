"""Decisions in Python that are drawn: by the generator of torch, so that `torch.manual_seed` fixes them too."""

import torch
from torch import Generator


def draw_number() -> float:
    """Draw a number from 0 to below 1 by torch's default generator on the CPU, without waiting for a device."""
    return torch.rand((), dtype=torch.float32, device='cpu').item()


def draw_index(count: int, generator: Generator | None = None) -> int:
    """Draw one of the numbers from 0 to `count` - 1, likewise, or by a generator of the user's."""
    device = 'cpu' if generator is None else generator.device
    return int(torch.randint(count, (), device=device, generator=generator).item())
