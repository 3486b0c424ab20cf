"""Convolutions over the last few tokens: a part of many recurrent modules, and the layer of LFM2."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from x_transformers.core.rows import gather_along
from x_transformers.flags import ConfigError, size
from x_transformers.recurrent.base import Recurrent, State


class CausalConvolution(nn.Conv1d):
    """Depthwise convolution of each token and those before it:  y_t = sum_{i<K} w_{K-1-i} x_{t-i} + bias.

    The last entry of `weight` (c 1 K) belongs to the newest token. Tokens before the first one are zeros, also those
    before the first one of a document.
    """

    def __init__(self, channels: int, kernel: int, bias: bool = False) -> None:
        super().__init__(channels, channels, kernel, groups=channels, bias=bias)

    def before(self, x: Tensor) -> Tensor:
        """Return the window before the first token, (b, K-1, c), for inputs like x (b n ...)."""
        return x.new_zeros(x.shape[0], self.kernel_size[0] - 1, self.in_channels)

    def forward(self, x: Tensor, window: Tensor, begins: Tensor | None, count: Tensor | None) -> tuple[Tensor, Tensor]:
        """Convolve.

        Args:
            x: tokens (b n c), of which the first `count` (b) are real, None for all
            window: the K-1 tokens before them, (b K-1 c)
            begins: where a document begins, (b n); None if there is one

        Returns:
            The output (b n c), and the window after the last real token.
        """
        n, kernel = x.shape[1], self.kernel_size[0]
        every, weight = torch.cat((window.to(x.dtype), x), dim=1), self.weight.squeeze(1).to(x.dtype)
        # a sum of products is faster than the depthwise kernels of torch on a CPU, and one kernel where it is compiled
        out = every[:, kernel - 1 :] * weight[:, -1]
        if self.bias is not None:
            out = out + self.bias.to(x.dtype)
        since = None
        if begins is not None:  # how many tokens before each are of its document
            at = torch.arange(n, device=x.device)
            since = (at - torch.where(begins, at, 0).cummax(dim=-1)[0]).unsqueeze(-1)
        for by in range(1, kernel):
            earlier = every[:, kernel - 1 - by : kernel - 1 - by + n]
            earlier = earlier if since is None else earlier.masked_fill(since < by, 0.0)
            out = torch.addcmul(out, earlier, weight[:, -1 - by])
        if count is None:
            return out, every[:, n:].clone()
        last = count.unsqueeze(-1) + torch.arange(kernel - 1, device=x.device)
        return out, gather_along(every, last, -2)


class ShortConvolution(Recurrent):
    """A gated convolution over the last `conv` tokens:  [B C u] = x W_in,  out = W_out (C * conv(B * u)).

    The state is what the last `conv` - 1 tokens gave to the convolution.  LFM2, arXiv:2511.23404
    """

    def __init__(self, dim: int, dim_out: int | None = None, conv: int = 3, bias: bool = False) -> None:
        super().__init__(dim, dim_out)
        size.require('conv', conv, ConfigError)
        self.in_proj = nn.Linear(dim, 3 * dim, bias=bias)
        self.conv = CausalConvolution(dim, conv, bias)
        self.out_proj = nn.Linear(dim, self.dim_out, bias=bias)

    def state_of(self, x: Tensor) -> State:
        return [self.conv.before(x)]

    def run(self, x: Tensor, state: State | None, begins: Tensor | None, count: Tensor | None) -> tuple[Tensor, State]:
        (window,) = self.state_of(x) if state is None else state
        b, c, u = self.in_proj(x).chunk(3, dim=-1)
        found, window = self.conv(b * u, window, begins, count)
        return self.out_proj(c * found), [window]
