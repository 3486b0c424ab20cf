"""A multi-layer perceptron as attention between its nodes."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated, Any

import torch
from einops import rearrange
from torch import Tensor, nn

from x_transformers.core.checks import check_vectors, checked
from x_transformers.flags import ConfigError, Configurable, count, mapping, none, size
from x_transformers.x_transformers import Encoder as Encoder

__all__ = ['NeoMLP']

ENCODER_DEFAULTS = {'attn_dim_head': 16, 'heads': 4}
OWN = ('dim', 'depth')


class RandomFourierEmbed(nn.Module):
    """Frozen random features of numbers:  x (...) -> cos(2 pi (w x + c)), (... d).

    Rahimi and Recht 2007, Random Features for Large-Scale Kernel Machines
    """

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.proj = nn.Linear(1, dim).requires_grad_(False)

    def forward(self, times: Tensor) -> Tensor:
        return torch.cos(2 * math.pi * self.proj(rearrange(times, '... -> ... 1')))


class NeoMLP(Configurable):
    """NeoMLP: an MLP whose nodes are tokens, and whose weights between nodes are attention.

        in   = W cos(2 pi (w x + c)) + e_in           one token per input node
        out  = encoder([in; e_hidden; e_out])         without positions; the embeddings distinguish the nodes
        y_o  = <out_o, v_o> + b_o                     one number per output node

        [b] dim_in -> [b] dim_out

    Kofinas et al. 2024, NeoMLP, openreview.net/forum?id=A8Vuf2e8y6
    """

    def __init__(
        self,
        *,
        dim_in: Annotated[int, 'number of input nodes', size],
        dim_hidden: Annotated[int, 'number of hidden nodes', count],
        dim_out: Annotated[int, 'number of output nodes', size],
        dim_model: Annotated[int, 'width of each node', size],
        depth: Annotated[int, 'number of blocks of the encoder', size],
        encoder_kwargs: Annotated[
            Mapping[str, Any] | None, f'flags of the encoder, in place of {ENCODER_DEFAULTS}', mapping | none
        ] = None,
    ) -> None:
        super().__init__()
        options: dict[str, Any] = ENCODER_DEFAULTS if encoder_kwargs is None else dict(encoder_kwargs)
        for name in OWN:
            if name in options:
                raise ConfigError(f'`encoder_kwargs` got `{name}`, write `dim_model` and `depth`')
        self.dim_in, self.dim_hidden, self.dim_out = dim_in, dim_hidden, dim_out
        self.input_embed = nn.Parameter(torch.randn(dim_in, dim_model) * 0.02)
        self.hidden_embed = nn.Parameter(torch.randn(dim_hidden, dim_model) * 0.02)
        self.output_embed = nn.Parameter(torch.randn(dim_out, dim_model) * 0.02)
        self.random_fourier = nn.Sequential(RandomFourierEmbed(dim_model), nn.Linear(dim_model, dim_model))
        self.transformer = Encoder(dim=dim_model, depth=depth, **options)
        self.to_output_weights = nn.Parameter(torch.randn(dim_out, dim_model))
        self.to_output_bias = nn.Parameter(torch.zeros(dim_out))

    @checked
    def forward(self, x: Tensor, return_embeds: bool = False) -> Any:
        """Return the output nodes of a batch (b dim_in), or of one input (dim_in).

        return_embeds   also return the embeddings of input, hidden and output nodes, each ([b] nodes dim_model)
        raises          TypeError or ValueError for an input of another kind or width
        """
        alone = torch.is_tensor(x) and x.ndim == 1
        check_vectors(x, 'x', *('b',) * (not alone), self.dim_in)
        rows = rearrange(x, 'd -> 1 d') if alone else x
        inputs = self.random_fourier(rows) + self.input_embed
        others = torch.cat((self.hidden_embed, self.output_embed)).expand(rows.shape[0], -1, -1)
        embeds = self.transformer(torch.cat((inputs, others.to(inputs.dtype)), dim=1))
        parts = embeds.split((self.dim_in, self.dim_hidden, self.dim_out), dim=1)
        y = (parts[-1] * self.to_output_weights).sum(dim=-1) + self.to_output_bias
        if alone:
            y, parts = y.squeeze(0), tuple(part.squeeze(0) for part in parts)
        return (y, parts) if return_embeds else y
