"""Perceivers: latent vectors that read any array by cross-attention."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import torch
from torch import Tensor, nn

from x_transformers.core.checks import check_vectors, checked, match_precision, zero_masked
from x_transformers.core.modes import at_least_float
from x_transformers.features.norms import BiasedLayerNorm
from x_transformers.flags import Configurable, boolean, count, mapping, none, positive, size, warn_once
from x_transformers.x_transformers import CrossAttender, Encoder

__all__ = ['Perceiver', 'PerceiverIO', 'fourier_positions']


WITHOUT_NORM = {'pre_norm_has_final_norm': False, 'verbose': False}  # flags of all stacks


def fourier_positions(
    axes: Sequence[int], bands: int, max_freq: float, device: Any = None, dtype: torch.dtype = torch.float32
) -> Tensor:
    """Return position features of the entries of an array: for each axis its position x from -1 to 1 and waves of it:

        [sin(pi f_k x), cos(pi f_k x), x]       f_k from 1 to max_freq / 2, in equal steps

    returns   axes... a(2 bands + 1), for a axes
    """
    wide = at_least_float(dtype)
    found = []
    for at, length in enumerate(axes):
        place = torch.linspace(-1.0, 1.0, length, device=device, dtype=wide) if length > 1 else torch.zeros(
            length, device=device, dtype=wide
        )  # fmt: skip
        waves = place.unsqueeze(-1) * torch.linspace(1.0, max_freq / 2, bands, device=device, dtype=wide) * math.pi
        one = torch.cat((waves.sin(), waves.cos(), place.unsqueeze(-1)), dim=-1)
        found.append(one.view(*[1] * at, length, *[1] * (len(axes) - at - 1), -1).expand(*axes, -1))
    return torch.cat(found, dim=-1).to(dtype)


class Reading(nn.Module):
    """Vectors that read an array:  b n d, b m c -> b n d, a norm of the array and a block of cross-attention."""

    def __init__(self, dim: int, dim_context: int, heads: int, dim_head: int, flags: Mapping[str, Any]) -> None:
        super().__init__()
        self.norm = BiasedLayerNorm(dim_context)
        sizes: dict[str, Any] = dict(dim=dim, depth=1, heads=heads, attn_dim_head=dim_head)
        options: dict[str, Any] = {**sizes, 'cross_attn_dim_context': dim_context, **WITHOUT_NORM, **flags}
        self.block = CrossAttender(**options)

    def forward(self, x: Tensor, context: Tensor, mask: Tensor | None = None) -> Tensor:
        return self.block(x, context=self.norm(zero_masked(context, mask)), context_mask=mask)


class Reads:
    """Base of perceivers: input of an array, and latents that read it."""

    def open(
        self,
        input_channels: int,
        input_axis: int,
        num_latents: int,
        dim: int,
        depth: int,
        weight_tie_layers: bool,
        num_freq_bands: int | None,
        max_freq: float,
    ) -> None:
        if weight_tie_layers and depth == 1:
            warn_once('`weight_tie_layers` has no effect with a `depth` of 1')
        self.depth, self.dim, self.input_channels, self.input_axis = depth, dim, input_channels, input_axis
        self.num_freq_bands, self.max_freq = num_freq_bands, float(max_freq)
        waves = 0 if num_freq_bands is None else input_axis * (2 * num_freq_bands + 1)
        self.dim_input = input_channels + waves
        self.latents = nn.Parameter(torch.empty(num_latents, dim))
        nn.init.trunc_normal_(self.latents, std=0.02, a=-0.04, b=0.04)

    def stacks(
        self, count: int, depth: int, heads: int, dim_head: int, flags: Mapping[str, Any] | None
    ) -> nn.ModuleList:
        """Return the stacks of latents."""
        sizes: dict[str, Any] = dict(dim=self.dim, depth=depth, heads=heads, attn_dim_head=dim_head)
        options: dict[str, Any] = {**sizes, **WITHOUT_NORM, **(flags or {})}
        return nn.ModuleList(Encoder(**options) for _ in range(count))

    def entries(self, x: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """Return the array as vectors with their positions, and a mask of the real ones:  (b, m, c), (b, m)"""
        wanted = ', '.join(('b', *(f'n{at + 1}' for at in range(self.input_axis)), str(self.input_channels)))
        if not torch.is_tensor(x) or x.ndim != self.input_axis + 2 or x.shape[-1] != self.input_channels:
            got = tuple(x.shape) if torch.is_tensor(x) else type(x).__name__
            raise ValueError(f'`x` must be ({wanted}), got {got}')
        if not x.is_floating_point():
            raise TypeError(f'`x` must be floating point, got {x.dtype}')
        x, axes = match_precision(x, self), x.shape[1:-1]
        if mask is not None:
            if mask.dtype != torch.bool or mask.shape != x.shape[:-1]:
                got = f'{mask.dtype} of shape {tuple(mask.shape)}'
                raise ValueError(f'`mask` must be boolean, {tuple(x.shape[:-1])}, got {got}: True except for padding')
            mask = mask.flatten(1)
        if self.num_freq_bands is not None:
            waves = fourier_positions(axes, self.num_freq_bands, self.max_freq, x.device, x.dtype)
            x = torch.cat((x, waves.expand(x.shape[0], *waves.shape)), dim=-1)
        return x.flatten(1, -2), mask


class Perceiver(Reads, Configurable):
    """Perceiver: latents z attend to an array x and to each other, repeatedly:  (b, ..., c) -> (b, num_classes)

        z = cross_i(z, [x | positions]);  z = self_i(z)          i < depth
        logits = head(mean of z)                                 or z itself, without `num_classes`

    The cost is linear in the size of the array. With `weight_tie_layers`, all cross-attentions except the first share
    their weights, and so do all self-attention stacks.

    Jaegle et al. 2021, arXiv:2103.03206
    """

    def __init__(
        self,
        input_channels: Annotated[int, 'number of channels of the input array', size],
        input_axis: Annotated[int, 'number of axes of the input array: 1 for audio or text, 2 for images', size],
        num_latents: Annotated[int, 'number of latents', size],
        dim: Annotated[int, 'width of the latents', size],
        depth: Annotated[int, 'number of rounds of cross-attention and self-attention', size],
        *,
        cross_heads: Annotated[int, 'number of heads of the cross-attention to the array', size] = 1,
        heads: Annotated[int, 'number of heads of the self-attention of the latents', size] = 8,
        cross_dim_head: Annotated[int, 'width of each cross-attention head', size] = 64,
        dim_head: Annotated[int, 'width of each self-attention head', size] = 64,
        self_per_cross: Annotated[int, 'number of self-attention blocks after each cross-attention', size] = 1,
        weight_tie_layers: Annotated[
            bool, 'share weights between the rounds, except for the first cross-attention', boolean
        ] = False,
        num_freq_bands: Annotated[
            int | None, 'number of Fourier frequency bands of the positions; None for no positions', count | none
        ] = 64,
        max_freq: Annotated[float, 'twice the maximum frequency of the Fourier features', positive] = 10.0,
        num_classes: Annotated[int | None, 'number of classes; None to return the latents', size | none] = None,
        cross_kwargs: Annotated[dict | None, 'additional arguments of the CrossAttender', mapping | none] = None,
        self_kwargs: Annotated[dict | None, 'additional arguments of the Encoder', mapping | none] = None,
    ) -> None:
        super().__init__()
        self.open(input_channels, input_axis, num_latents, dim, depth, weight_tie_layers, num_freq_bands, max_freq)
        tied = bool(weight_tie_layers)
        reading = (dim, self.dim_input, cross_heads, cross_dim_head, cross_kwargs or {})
        self.cross = nn.ModuleList(Reading(*reading) for _ in range(min(depth, 2) if tied else depth))
        self.self = self.stacks(1 if tied else depth, self_per_cross, heads, dim_head, self_kwargs)
        head = (BiasedLayerNorm(dim), nn.Linear(dim, num_classes or 1))
        self.to_logits = None if num_classes is None else nn.Sequential(*head)

    @checked
    def forward(self, x: Tensor, mask: Tensor | None = None, return_embeddings: bool = False) -> Tensor:
        """Return logits (b, num_classes), or latents (b, num_latents, dim) without classes or with `return_embeddings`.

        x      b n1 ... c   an array
        mask   b n1 ...     True except for padding
        raises              ValueError or TypeError for another shape or kind
        """
        x, mask = self.entries(x, mask)
        z = self.latents.expand(x.shape[0], -1, -1)
        for step in range(self.depth):
            z = self.cross[min(step, len(self.cross) - 1)](z, x, mask)
            z = self.self[min(step, len(self.self) - 1)](z)
        return z if return_embeddings or self.to_logits is None else self.to_logits(z.mean(dim=1))


class PerceiverIO(Reads, Configurable):
    """Perceiver IO: latents encode an array, queries decode it:  (b, ..., c), (b, o, queries_dim) -> (b, o, logits_dim)

        z = cross(latents, [x | positions]);  z = self_i(z), i < depth;  out = decoder(queries, z)

    Each output depends only on its query. Without queries, the latents are returned. With `weight_tie_layers`, all
    self-attention stacks share their weights.

    Jaegle et al. 2021, arXiv:2107.14795
    """

    def __init__(
        self,
        input_channels: Annotated[int, 'number of channels of the input array', size],
        input_axis: Annotated[int, 'number of axes of the input array: 1 for audio or text, 2 for images', size],
        num_latents: Annotated[int, 'number of latents', size],
        dim: Annotated[int, 'width of the latents', size],
        depth: Annotated[int, 'number of times the self-attention stack runs', size],
        *,
        queries_dim: Annotated[int, 'width of the queries', size],
        logits_dim: Annotated[int | None, 'width of the outputs; that of the queries if None', size | none] = None,
        cross_heads: Annotated[int, 'number of heads of the cross-attention to the array', size] = 1,
        heads: Annotated[int, 'number of heads of the self-attention of the latents', size] = 8,
        decoder_heads: Annotated[int, 'number of heads of the cross-attention of the queries', size] = 1,
        cross_dim_head: Annotated[int, 'width of each cross-attention head', size] = 64,
        dim_head: Annotated[int, 'width of each self-attention head', size] = 64,
        self_per_cross: Annotated[int, 'number of blocks of each self-attention stack', size] = 1,
        weight_tie_layers: Annotated[bool, 'share the weights of all self-attention stacks', boolean] = False,
        num_freq_bands: Annotated[
            int | None, 'number of Fourier frequency bands of the positions; None for no positions', count | none
        ] = 64,
        max_freq: Annotated[float, 'twice the maximum frequency of the Fourier features', positive] = 10.0,
        cross_kwargs: Annotated[dict | None, 'additional arguments of both CrossAttenders', mapping | none] = None,
        self_kwargs: Annotated[dict | None, 'additional arguments of the Encoder', mapping | none] = None,
    ) -> None:
        super().__init__()
        self.open(input_channels, input_axis, num_latents, dim, depth, weight_tie_layers, num_freq_bands, max_freq)
        self.queries_dim, flags = queries_dim, cross_kwargs or {}
        self.cross = nn.ModuleList((Reading(dim, self.dim_input, cross_heads, cross_dim_head, flags),))
        self.self = self.stacks(1 if weight_tie_layers else depth, self_per_cross, heads, dim_head, self_kwargs)
        self.decoder = Reading(queries_dim, dim, decoder_heads, cross_dim_head, flags)
        self.to_logits = None if logits_dim is None else nn.Linear(queries_dim, logits_dim)

    @checked
    def forward(self, x: Tensor, queries: Tensor | None = None, mask: Tensor | None = None) -> Tensor:
        """Return an output for each query, (b, o, logits_dim), or without queries the latents (b, num_latents, dim).

        x         b n1 ... c        an array
        queries   [b] o queries_dim   queries, for all batch entries if there is no batch axis
        mask      b n1 ...          True except for padding
        raises                      ValueError or TypeError for another shape or kind
        """
        if queries is not None:
            queries = queries.unsqueeze(0) if torch.is_tensor(queries) and queries.ndim == 2 else queries
            check_vectors(queries, 'queries', 'b', 'o', self.queries_dim)
            if queries.shape[0] not in (1, x.shape[0]):
                raise ValueError(f'`queries` got {queries.shape[0]} rows, `x` has {x.shape[0]}')
            queries = match_precision(queries, self, 'queries')
        x, mask = self.entries(x, mask)
        z = self.cross[0](self.latents.expand(x.shape[0], -1, -1), x, mask)
        for step in range(self.depth):
            z = self.self[min(step, len(self.self) - 1)](z)
        if queries is None:
            return z
        out = self.decoder(queries.expand(x.shape[0], -1, -1), z)
        return out if self.to_logits is None else self.to_logits(out)
