"""Conformers: encoders of spectrograms that alternate attention and convolutions."""

from __future__ import annotations

from typing import Annotated, Any

import torch
from torch import Tensor, nn

from x_transformers.core.checks import as_mask, check_real_first, check_vectors, checked, match_precision
from x_transformers.core.nets import check_sizes_or_stack
from x_transformers.flags import Check, ConfigError, Configurable, instance_of, none, size
from x_transformers.x_transformers import AttentionLayers, Encoder

__all__ = ['ConformerEncoder']

factor = Check('4 or 1', lambda value: value in (1, 4) and not isinstance(value, bool))


class ConformerEncoder(Configurable):
    """Conformer encoder of audio frames:  (b, t, input_dim) -> (b, n, dim)

    Two 3 x 3 convolutions with stride 2 and ReLU reduce the frames to a quarter, n = ((t - 1) // 2 - 1) // 2. Each
    block is half a feedforward, attention, convolution, half a feedforward and a norm, with the relative positions of
    Transformer-XL.

    Gulati et al. 2020, arXiv:2005.08100
    """

    def __init__(
        self,
        dim: Annotated[int | None, 'width of the stack; that of `attn_layers` if it is passed', size | none] = None,
        depth: Annotated[int | None, 'number of blocks', size | none] = None,
        input_dim: Annotated[int, 'number of channels per frame', size] = 80,
        subsample: Annotated[int, 'number of frames per output vector: 4, or 1 for no convolutions', factor] = 4,
        attn_layers: Annotated[AttentionLayers | None, 'custom Encoder', instance_of(AttentionLayers) | none] = None,
        **flags: Any,
    ) -> None:
        super().__init__()
        check_sizes_or_stack(attn_layers, dict(dim=dim, depth=depth), flags)
        if attn_layers is None:
            own = dict(macaron=True, conv_module=True, block_norm=True, xl_rel_pos=True, norm_bias=True, ff_swish=True)
            options: dict[str, Any] = {'dim': dim, 'depth': depth, **own, 'verbose': False, **flags}
            attn_layers = Encoder(**options)
        if not attn_layers.sees_future:
            raise ConfigError(f'`attn_layers` must be an Encoder, got {type(attn_layers).__name__}')
        width = attn_layers.dim
        self.input_dim, self.factor, self.attn_layers = input_dim, subsample, attn_layers
        left = input_dim
        if subsample == 4:
            left = quarter_length(input_dim)
            if left < 1:
                raise ConfigError(f'`input_dim` got {input_dim}, of which two convolutions leave nothing')
            channels = (1, width, width)
            self.subsample = nn.ModuleList(nn.Conv2d(channels[at], channels[at + 1], 3, 2) for at in range(2))
        self.to_embed = nn.Linear(left * width if subsample == 4 else left, width)

    @checked
    def forward(
        self, x: Tensor, mask: Tensor | None = None, return_mask: bool = False, **inputs: Any
    ) -> Tensor | tuple[Tensor, Tensor | None]:
        """Return vectors (b, n, dim); with `return_mask` also a mask (b, n), False for vectors that include padding.

        x       b t input_dim
        mask    b t   True except for padding, which must be at the end
        raises        ValueError for too few frames, padding that is not at the end, or inputs of another shape
        """
        check_vectors(x, 'x', 'b', 't', self.input_dim)
        x, mask = match_precision(x, self), as_mask(mask, 'mask', *x.shape[:2], like=x)
        if mask is not None:
            check_real_first(mask, 'mask', 'convolutions count from the first one')
            x = x.masked_fill(~mask.unsqueeze(-1), 0.0)
        if self.factor == 4:
            if quarter_length(x.shape[1]) < 1:
                raise ValueError(f'`x` must have at least 7 frames, got {x.shape[1]}')
            x = x.unsqueeze(1)
            for conv in self.subsample:
                x = conv(x).relu()
            x = x.transpose(1, 2).flatten(2)
            if mask is not None:
                mask = torch.arange(x.shape[1], device=x.device) < quarter_length(mask.sum(dim=-1, keepdim=True))
        given = {} if mask is None else {'mask': mask}
        x = self.attn_layers(self.to_embed(x), **given, **inputs)
        return (x, mask) if return_mask else x


def quarter_length(count: Any) -> Any:
    """Return what two convolutions of width 3 and stride 2 leave of a length."""
    return ((count - 1) // 2 - 1) // 2
