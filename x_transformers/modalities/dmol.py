"""Discretized mixture of logistics: an output head for pixels."""

from __future__ import annotations

import math
from typing import Annotated

import torch
import torch.nn.functional as F
from torch import Generator, Tensor, nn

from x_transformers.core.checks import check_range, check_vectors, checked, match_precision
from x_transformers.core.modes import to_float
from x_transformers.flags import Configurable, at_least, size

LEAST = -7.0  # of the logarithm of a scale: narrower than a value
SMALL = 1e-5


class DMOLHead(Configurable):
    """Output head for pixels: a discretized mixture of logistics (DMOL), with log probabilities and sampling.

        p(v) = sum_k pi_k prod_c ( s((x_c - m_kc + w) / e^s_kc) - s((x_c - m_kc - w) / e^s_kc) ),   s the sigmoid

    x_c is the value of channel c in [-1, 1], w half the distance between values; the lowest and the highest value get
    the tails. The mean m_kc is a parameter, plus the previous channels times coefficients, which are the tanh of
    further parameters. As a head of a model, `to_logits=DMOLHead(dim)`, its logits are the parameters.

        params = head(x)                          b n d -> b n (components parameters)
        loss = -head.log_prob(params, pixels).mean()
        pixels = head.sample(params)              b n channels, whole numbers from 0 to levels - 1

    Salimans et al. 2017, PixelCNN++, arXiv:1701.05517; Parmar et al. 2018, Image Transformer, arXiv:1802.05751
    """

    instead_of_logits = 'parameters of a mixture, whose loss is -log_prob'

    def __init__(
        self,
        dim: Annotated[int, 'width of the hidden states', size],
        components: Annotated[int, 'number of logistic components in the mixture', size] = 10,
        channels: Annotated[int, 'number of channels per pixel', size] = 3,
        levels: Annotated[int, 'number of values per channel', at_least(2)] = 256,
    ) -> None:
        super().__init__()
        self.dim, self.components, self.channels, self.levels = dim, components, channels, levels
        # a weight, means, scales, coefficients
        self.parts = (1, channels, channels, channels * (channels - 1) // 2)
        self.to_params = nn.Linear(dim, components * sum(self.parts))
        nn.init.normal_(self.to_params.weight, std=0.02)
        with torch.no_grad():
            self.split(self.to_params.bias.zero_())[2].fill_(-2.0)

    def split(self, params: Tensor) -> tuple[Tensor, ...]:
        """... (k p) -> ... k 1, ... k c, ... k c, ... k c (c - 1) / 2"""
        return params.unflatten(-1, (self.components, sum(self.parts))).split(self.parts, dim=-1)

    def shifted(self, means: Tensor, coefficients: Tensor, before: Tensor) -> Tensor:
        """Return the mean of the next channel, (..., k), from the values of the previous ones, (..., c)."""
        at = before.shape[-1]
        own = coefficients[..., at * (at - 1) // 2 : at * (at + 1) // 2].tanh()
        return means[..., at] + (own * before.unsqueeze(-2)).sum(dim=-1)

    def describe(self) -> dict[str, str]:
        return {'params': f'(b n {self.dim}) -> (b n {self.to_params.out_features}), {self.components} components'}

    @checked
    def forward(self, x: Tensor) -> Tensor:
        check_vectors(x, 'x', *['b'] * max(x.ndim - 1, 0), self.dim)
        return self.to_params(match_precision(x, self))

    @checked
    def log_prob(self, params: Tensor, pixels: Tensor) -> Tensor:
        """Return the log probability of pixels (..., channels), over all channels together:  (...)

        raises    TypeError or ValueError for other shapes, and for values outside of 0 .. levels - 1
        """
        self.check(params)
        if pixels.dtype == torch.bool or pixels.is_floating_point() or pixels.is_complex():
            raise TypeError(f'`pixels` must be whole numbers, got {pixels.dtype}')
        wanted = (*params.shape[:-1], self.channels)
        if tuple(pixels.shape) != wanted:
            raise ValueError(f'`pixels` must have shape {wanted}, got {tuple(pixels.shape)}')
        check_range(pixels, 'pixels', 0, self.levels - 1, 'values')
        weights, means, scales, coefficients = self.split(to_float(params))
        pixels = pixels.long()
        x = self.scaled(pixels, means)
        found = weights.squeeze(-1).log_softmax(dim=-1)
        for at in range(self.channels):
            centred = x[..., at].unsqueeze(-1) - self.shifted(means, coefficients, x[..., :at])
            value = pixels[..., at].unsqueeze(-1)
            found = found + self.of_bin(centred, scales[..., at].clamp(min=LEAST), value)
        return found.logsumexp(dim=-1)

    def of_bin(self, centred: Tensor, scale: Tensor, value: Tensor) -> Tensor:
        """Return log(s(above) - s(below)) = log s(above) + log s(-below) + log(1 - e^(below - above)), which is
        stable.
        """
        narrow = (-scale).exp()
        half = narrow / (self.levels - 1)
        # of a small half, log(2 half) - half: the logarithm stays finite, however wide a logistic is
        small = math.log(2 / (self.levels - 1)) - scale - half
        inside = torch.where(half < SMALL, small, (-torch.expm1(-2 * half.clamp(min=SMALL))).log())
        above, below = centred * narrow + half, centred * narrow - half
        lowest, highest = value == 0, value == self.levels - 1
        left = F.logsigmoid(above).masked_fill(highest, 0.0) + F.logsigmoid(-below).masked_fill(lowest, 0.0)
        return left + inside.masked_fill(lowest | highest, 0.0)

    @torch.no_grad()
    @checked
    def sample(self, params: Tensor, generator: Generator | None = None) -> Tensor:
        """Return pixels, (..., channels), drawn one channel after the other."""
        self.check(params)
        weights, means, scales, coefficients = self.split(to_float(params))
        noise = torch.rand(weights.shape[:-1], generator=generator, device=params.device, dtype=weights.dtype)
        most = 1 - torch.finfo(noise.dtype).eps
        chosen = (weights.squeeze(-1) - (-noise.clamp(1e-30, most).log()).log()).argmax(dim=-1, keepdim=True)
        index = chosen.unsqueeze(-1)
        means, scales, coefficients = (
            t.gather(-2, index.expand(*index.shape[:-1], t.shape[-1])) for t in (means, scales, coefficients)
        )
        found = params.new_zeros(*params.shape[:-1], 0, dtype=torch.long)
        for at in range(self.channels):
            mean = self.shifted(means, coefficients, self.scaled(found, means))
            u = torch.rand(mean.shape, generator=generator, device=params.device, dtype=mean.dtype).clamp(1e-30, most)
            x = mean + scales[..., at].clamp(min=LEAST).exp() * (u.log() - torch.log1p(-u))
            value = ((x.clamp(-1, 1) + 1) * (self.levels - 1) / 2).round().long()
            found = torch.cat((found, value), dim=-1)
        return found

    def scaled(self, pixels: Tensor, like: Tensor) -> Tensor:
        return pixels.to(like.dtype) * (2 / (self.levels - 1)) - 1

    def check(self, params: Tensor) -> None:
        check_vectors(params, 'params', *['b'] * max(params.ndim - 1, 0), self.to_params.out_features)
