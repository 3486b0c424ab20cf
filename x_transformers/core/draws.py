"""Decisions in Python that are drawn: by the generator of torch, so that `torch.manual_seed` fixes them too."""

import torch


def draw_number() -> float:
    """Draw a number from 0 to below 1 by torch's default generator on the CPU, without waiting for a device."""
    return torch.rand((), dtype=torch.float32, device='cpu').item()


def draw_index(count: int) -> int:
    """Draw one of the numbers from 0 to `count` - 1, likewise."""
    return int(torch.randint(count, (), device='cpu').item())
